#include "tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/process.h"
#include "words.h"

namespace octet::report {
namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

// TFRecord masks checksums, because a CRC of data with embedded CRCs is weak.
std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return std::rotr(crc, 15) + 0xA282EAD8u;
}

template <class T>
void put_little(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
}

void put_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>((value & 0x7F) | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

enum Wire : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_key(std::string& out, std::uint32_t field, Wire wire) {
  put_varint(out, (field << 3) | wire);
}

void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// Event: wall_time 1 (double), step 2 (int64), file_version 3, summary 5, session_log 7.
std::string event_head(std::int64_t step) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string event;
  put_key(event, 1, kFixed64);
  put_little(event, std::bit_cast<std::uint64_t>(now));
  if (step != 0) {
    put_key(event, 2, kVarint);
    put_varint(event, static_cast<std::uint64_t>(step));
  }
  return event;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

EventFile::EventFile(const std::string& folder, std::int64_t first_step) {
  make_folders(folder);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string stem = folder + "/events.out.tfevents." +
                           std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count()) +
                           "." + host_name() + "." + std::to_string(getpid()) + ".";
  for (int n = 0; file_ == nullptr && n < 1000; ++n) {
    path_ = stem + std::to_string(n);
    file_ = std::fopen(path_.c_str(), "wbx");
    if (file_ == nullptr && errno != EEXIST) break;
  }
  if (file_ == nullptr) {
    throw Error(
        {.what = "the TensorBoard file cannot be created",
         .found = std::strerror(errno),
         .where = path_,
         .fix = "check the permissions of the folder and the free space of its disk, or remove tensorboard "
                "from report_to",
         .code = exit_code_of(errno)});
  }
  std::string version = event_head(0);
  put_bytes(version, 3, "brain.Event:2");
  record(version);
  std::string start = event_head(first_step);
  std::string status;
  put_key(status, 1, kVarint);
  put_varint(status, 1);  // SessionLog.START
  put_bytes(start, 7, status);
  record(start);
}

EventFile::~EventFile() {
  if (file_ != nullptr) std::fclose(file_);
}

void EventFile::write(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, kFixed32);
    put_little(value, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
    put_bytes(summary, 1, value);
  }
  std::string event = event_head(step);
  put_bytes(event, 5, summary);
  record(event);
}

void EventFile::record(const std::string& event) {
  std::string length;
  put_little(length, static_cast<std::uint64_t>(event.size()));
  std::string frame = length;
  put_little(frame, masked_crc(length));
  frame += event;
  put_little(frame, masked_crc(event));
  if (std::fwrite(frame.data(), 1, frame.size(), file_) != frame.size() || std::fflush(file_) != 0) {
    throw Error({.what = "the TensorBoard file cannot be written",
                 .found = std::strerror(errno),
                 .where = path_,
                 .fix = "free disk space, or set report_to: none",
                 .code = exit_code_of(errno)});
  }
}

namespace {

std::string newest_folder(const std::string& parent) {
  std::string newest;
  std::filesystem::file_time_type time;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    if (!entry.is_directory(error)) continue;
    const auto written = entry.last_write_time(error);
    if (error || (!newest.empty() && written <= time)) continue;
    newest = entry.path().string();
    time = written;
  }
  return newest;
}

std::string folder_of(const RunFacts& facts) {
  std::string folder = facts.logging_dir;
  if (folder.empty() && facts.first_step > 0) folder = newest_folder(facts.output_dir + "/runs");
  if (folder.empty()) folder = facts.output_dir + "/runs/" + date_and_host();
  return folder;
}

/// Adds the figures of each block of a field "experts" to TensorBoard's scalars.
void add_experts(const std::string& prefix, const Json& experts,
                 std::vector<std::pair<std::string, double>>& scalars) {
  if (!experts.is_object() || experts.empty()) return;
  for (std::size_t i = 0; i < experts.at("blocks").size(); ++i) {
    const std::string tag = prefix + experts.at("blocks")[i].dump() + "/";
    for (const char* figure : {"largest", "smallest", "entropy", "dropped"})
      scalars.emplace_back(tag + figure, experts.at(figure)[i].get<double>());
  }
}

}  // namespace

TensorBoard::TensorBoard(const RunFacts& facts) : file_(folder_of(facts), facts.first_step + 1) {}

void TensorBoard::step(const StepFacts& f, const RunFigures& run) {
  const Window& window = run.window;
  const double rate = window.per_second(static_cast<double>(window.tokens));
  Scalars scalars{{"train/loss", window.mean_loss()},
                  {"train/grad_norm", f.grad_norm},
                  {"train/learning_rate", f.learning_rate},
                  {"train/epoch", f.epoch},
                  {"train/global_step", static_cast<double>(f.step)},
                  {"perf/seconds_per_step", window.per_step(window.seconds)},
                  {"perf/tokens_per_second", rate},
                  {"train/skipped_steps", static_cast<double>(run.totals.skipped)},
                  {"perf/data_seconds", window.per_step(window.data_seconds)}};
  if (run.knows_work()) scalars.emplace_back("perf/tflops", run.teraflops(rate));
  if (run.knows_peak()) scalars.emplace_back("perf/mfu", run.utilisation(rate));
  if (f.memory_bytes > 0) scalars.emplace_back("memory/allocated_gib", gib(f.memory_bytes));
  if (f.memory_peak_bytes > 0) scalars.emplace_back("memory/peak_gib", gib(f.memory_peak_bytes));
  if (!window.kinds.empty()) {
    scalars.emplace_back("comm/bytes", window.per_step(window.bytes()));
    scalars.emplace_back("comm/ms", 1e3 * window.per_step(window.comm_seconds));
    scalars.emplace_back("comm/exposed_ms", 1e3 * window.per_step(window.exposed_seconds));
  }
  for (const auto& [name, kind] : window.kinds) {
    scalars.emplace_back("comm/" + name + "_ms", 1e3 * window.per_step(kind.seconds));
    scalars.emplace_back("comm/" + name + "_bytes", window.per_step(static_cast<double>(kind.bytes)));
  }
  for (std::size_t rank = 0; rank < f.rank_losses.size(); ++rank) {
    if (!f.rank_losses[rank]) continue;
    scalars.emplace_back("rank" + std::to_string(rank) + "/loss", *f.rank_losses[rank]);
  }
  if (f.fp8->is_object()) {
    for (const auto& [gemm_kind, operands] : f.fp8->items()) {
      for (const auto& [operand, values] : operands.items()) {
        const std::string tag = "fp8/" + gemm_kind + "/" + operand;
        scalars.emplace_back(tag + "_saturated", number_of(values, "saturated"));
        scalars.emplace_back(tag + "_lost", number_of(values, "lost"));
      }
    }
  }
  add_experts("experts/", *f.experts, scalars);
  scalars.insert(scalars.end(), f.extra.begin(), f.extra.end());
  write(f.step, scalars);
}

void TensorBoard::evaluation(const EvalFacts& facts) {
  Scalars scalars{{"eval/loss", facts.loss},
                  {"eval/runtime", facts.seconds},
                  {"eval/samples_per_second", facts.per_second(facts.samples)},
                  {"eval/steps_per_second", facts.per_second(facts.batches)}};
  add_experts("eval/experts/", *facts.experts, scalars);
  for (const auto& [name, value] : facts.extra) scalars.emplace_back("eval/" + name, value);
  write(facts.step, scalars);
}

void TensorBoard::results(const Json& train, const RunFigures& run) {
  write(run.totals.step,
        {{"train/train_loss", run.totals.mean_loss()},
         {"train/train_runtime", run.session_elapsed},
         {"train/train_samples_per_second", train.at("train_samples_per_second").get<double>()},
         {"train/train_steps_per_second", train.at("train_steps_per_second").get<double>()},
         {"train/total_flos", train.at("total_flos").get<double>()}});
}

std::string TensorBoard::folder() const {
  return std::filesystem::path(file_.path()).parent_path().string();
}

void TensorBoard::write(std::int64_t step, const Scalars& scalars) {
  write_or_warn([&] { file_.write(step, scalars); });
}

}  // namespace octet::report
