#include "output_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <type_traits>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/checkpoint/arrays_file.h"
#include "octet/feed/routing_file.h"

namespace octet::answers {
namespace {

using checkpoint::Array;
using checkpoint::ArraysFile;
using checkpoint::ArrayType;

constexpr const char* kFormat = "octet scores";
constexpr std::int64_t kVersion = 1;

/// The numbers of one row.
struct ScoreRow {
  std::vector<std::uint32_t> ids, top_ids;
  std::vector<std::uint16_t> logprobs, top_logprobs;
  std::vector<float> rest;
};

template <typename T>
bool read_numbers(const Json& json, const char* name, std::vector<T>& out) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_array()) return false;
  for (const Json& value : *found) {
    if constexpr (std::is_floating_point_v<T>) {
      if (!value.is_number()) return false;
      out.push_back(value.get<T>());
    } else {
      if (!value.is_number_unsigned()) return false;
      const auto number = value.get<std::uint64_t>();
      if (number > std::numeric_limits<T>::max()) return false;
      out.push_back(static_cast<T>(number));
    }
  }
  return true;
}

/// Parses the row in a line of the notes. Throws Error (usage) if score_note() did not write it for this
/// `best`.
ScoreRow row_of(const RowResult& result, std::int64_t best, const std::string& where) {
  ScoreRow row;
  bool whole = result.lines.size() == 1;
  if (whole) {
    const Json json = parse_json(result.lines.front(), where);
    whole = json.is_object() && read_numbers(json, "ids", row.ids) &&
            read_numbers(json, "logprobs", row.logprobs) && !row.ids.empty() &&
            row.logprobs.size() + 1 == row.ids.size();
    if (whole && best > 0) {
      const std::size_t places = row.logprobs.size(), each = places * static_cast<std::size_t>(best);
      whole = read_numbers(json, "top_ids", row.top_ids) &&
              read_numbers(json, "top_logprobs", row.top_logprobs) && read_numbers(json, "rest", row.rest) &&
              row.top_ids.size() == each && row.top_logprobs.size() == each && row.rest.size() == places;
    }
  }
  if (whole) return row;
  throw Error({.what = "a stored row of scores is damaged",
               .expected = "a score for each token, and --top-logprobs of each",
               .found = "lists of other lengths",
               .where = where,
               .fix = "start again with --overwrite",
               .code = ExitCode::usage});
}

template <typename T>
void append(Array& array, const std::vector<T>& values) {
  array.bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

void append_number(Array& array, std::int64_t value) {
  append(array, std::vector<std::int64_t>{value});
}

std::string value_of(const std::string& text) {
  return text.empty() ? "none" : "'" + text + "'";
}

}  // namespace

std::string score_note(const std::vector<std::int32_t>& ids, const generate::Decoder::Score& score,
                       std::int64_t best) {
  Json logprobs = Json::array();
  for (const double logprob : score.logprobs) logprobs.push_back(checkpoint::rounded_to_f16(logprob));
  Json line{{"ids", ids}, {"logprobs", std::move(logprobs)}};
  if (best > 0) {
    Json top_ids = Json::array(), top_logprobs = Json::array(), rest = Json::array();
    for (const auto& top : score.top) {
      check(std::ssize(top) == best, "the number of tokens equals the requested number");
      double sum = 0;
      for (const auto& [id, logprob] : top) {
        top_ids.push_back(id);
        top_logprobs.push_back(checkpoint::rounded_to_f16(logprob));
        sum += std::exp(logprob);
      }
      rest.push_back(static_cast<float>(std::max(0.0, 1.0 - sum)));
    }
    line["top_ids"] = std::move(top_ids);
    line["top_logprobs"] = std::move(top_logprobs);
    line["rest"] = std::move(rest);
  }
  return line.dump();
}

ScoreFile::ScoreFile(ScoreSource source, std::vector<std::int64_t> numbers)
    : source_(std::move(source)), numbers_(std::move(numbers)) {}

void ScoreFile::require_row(const RowResult& row, const std::string& where) const {
  (void)row_of(row, source_.best, where);
}

std::string ScoreFile::bytes(const std::map<std::int64_t, RowResult>& rows) const {
  Array places{ArrayType::i64, {0}, ""}, offsets = places, logprob_offsets = places;
  Array ids{ArrayType::u32, {0}, ""}, logprobs{ArrayType::f16, {0}, ""}, rest{ArrayType::f32, {0}, ""};
  Array top_ids{ArrayType::u32, {0, source_.best}, ""}, top_logprobs{ArrayType::f16, {0, source_.best}, ""};
  append_number(offsets, 0);
  append_number(logprob_offsets, 0);
  for (const auto& [number, result] : rows) {
    if (!result.failure.empty()) continue;
    const ScoreRow row = row_of(result, source_.best, "row " + std::to_string(number));
    append_number(places, numbers_[static_cast<std::size_t>(number)]);
    append(ids, row.ids);
    append(logprobs, row.logprobs);
    append(top_ids, row.top_ids);
    append(top_logprobs, row.top_logprobs);
    append(rest, row.rest);
    ++places.shape[0];
    ids.shape[0] += std::ssize(row.ids);
    logprobs.shape[0] += std::ssize(row.logprobs);
    append_number(offsets, ids.shape[0]);
    append_number(logprob_offsets, logprobs.shape[0]);
  }
  offsets.shape[0] = logprob_offsets.shape[0] = places.shape[0] + 1;
  top_ids.shape[0] = top_logprobs.shape[0] = rest.shape[0] = logprobs.shape[0];
  ArraysFile file;
  file.arrays.emplace("rows", std::move(places));
  file.arrays.emplace("offsets", std::move(offsets));
  file.arrays.emplace("ids", std::move(ids));
  file.arrays.emplace("logprob_offsets", std::move(logprob_offsets));
  file.arrays.emplace("logprobs", std::move(logprobs));
  if (source_.best > 0) {
    file.arrays.emplace("top_ids", std::move(top_ids));
    file.arrays.emplace("top_logprobs", std::move(top_logprobs));
    file.arrays.emplace("rest", std::move(rest));
  }
  file.texts = {{"format", kFormat},
                {"model", source_.model},
                {"adapter", source_.adapter},
                {"weights", source_.weights},
                {"tokenizer", source_.tokenizer}};
  file.numbers = {{"version", kVersion}, {"vocabulary", source_.vocabulary}, {"best", source_.best}};
  return checkpoint::arrays_file_bytes(file);
}

void ScoreFile::require_same(const std::string& path, const std::string& fix) const {
  const auto refuse = [&](const std::string& what, const std::string& expected, const std::string& found) {
    throw Error({.what = what,
                 .expected = expected,
                 .found = found,
                 .where = path,
                 .fix = fix,
                 .code = ExitCode::usage});
  };
  ArraysFile file;
  try {
    file = checkpoint::read_arrays_file(read_file(path), path);
  } catch (const Error& e) {
    if (e.code() != ExitCode::usage) throw;
    refuse(e.problem().what, "scores of an earlier run, or no file", e.problem().found);
  }
  if (file.texts["format"] != kFormat || file.numbers["version"] != kVersion)
    refuse("the existing HDF5 file holds no scores", "scores of an earlier run, or no file",
           "another format");
  const auto require = [&](const std::string& name, const std::string& ours, const std::string& theirs) {
    if (ours != theirs) refuse("the existing scores have another " + name, ours, theirs);
  };
  const auto require_text = [&](const std::string& name, const std::string& ours) {
    require(name, value_of(ours), value_of(file.texts[name]));
  };
  require_text("tokenizer", source_.tokenizer);
  require("vocabulary", std::to_string(source_.vocabulary), std::to_string(file.numbers["vocabulary"]));
  require_text("model", source_.model);
  require_text("adapter", source_.adapter);
  if (source_.weights != file.texts["weights"])
    refuse("the existing scores are of the same model with other weights", value_of(source_.weights),
           value_of(file.texts["weights"]));
  require("number of most probable tokens (--logprobs)", std::to_string(source_.best),
          std::to_string(file.numbers["best"]));
}

namespace {

[[noreturn]] void cannot_write_routing(const std::string& path) {
  const int error = errno;
  throw Error({.what = "the experts of answers cannot be written",
               .found = std::strerror(error),
               .where = path,
               .fix = "free disk space or choose another --save-routing",
               .code = exit_code_of(error)});
}

/// Returns the whole lines of the file of an earlier run.
std::string earlier_lines(const std::string& path, const std::string& head) {
  const std::string text = path_exists(path) ? read_file(path) : "";
  const std::string whole = text.substr(0, text.rfind('\n') + 1);
  if (whole.starts_with(head)) return whole;
  throw Error({.what = "the experts of the earlier answers are missing",
               .expected = "the file of --save-routing of the run that began --out",
               .found = text.empty() ? "no such file" : "another file",
               .where = path,
               .fix = "name that file, or start again with --overwrite",
               .code = ExitCode::usage});
}

}  // namespace

void RoutingOut::require_free(const std::string& path, const runtime::Routers& routers, bool replaces) {
  if (is_folder(path)) {
    throw Error({.what = "--save-routing names a folder",
                 .expected = "a file for the experts of answers",
                 .where = path,
                 .fix = "name a file in it, such as " + path + "/experts.jsonl",
                 .code = ExitCode::usage});
  }
  if (!path_exists(path)) return;
  // The first line names the format before the routers.
  const std::string head = feed::routing_head(routers), format = head.substr(0, head.find(','));
  std::string begin(format.size(), '\0');
  std::ifstream(path, std::ios::binary).read(begin.data(), std::ssize(begin));
  const bool ours = begin == format;
  if (ours && replaces) return;
  throw Error(
      {.what = "the file for the experts of answers exists",
       .expected = "a path without a file",
       .found = ours ? "the experts of other answers" : "a file that --save-routing did not write",
       .where = path,
       .fix = std::string("choose another --save-routing") + (ours ? ", or replace it with --overwrite" : ""),
       .code = ExitCode::usage});
}

RoutingOut::RoutingOut(const std::string& path, const runtime::Routers& routers, New fresh)
    : path_(path), lock_(files::lock_output(path)) {
  const std::string head = feed::routing_head(routers) + "\n";
  write_file_atomically(path, fresh == New::yes ? head : earlier_lines(path, head));
  file_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file_ < 0) cannot_write_routing(path_);
}

RoutingOut::~RoutingOut() {
  if (file_ >= 0) ::close(file_);
}

void RoutingOut::add(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file_, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) cannot_write_routing(path_);
    done += static_cast<std::size_t>(count);
  }
}

void RoutingOut::sync() {
  if (::fdatasync(file_) != 0) cannot_write_routing(path_);
}

}  // namespace octet::answers
