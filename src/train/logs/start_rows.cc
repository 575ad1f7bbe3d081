#include "octet/train/start_rows.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "octet/base/strings.h"

namespace octet::train {
namespace {

std::string counted(std::int64_t n, const char* noun) {
  return with_commas(n) + " " + noun + (n == 1 ? "" : "s");
}

std::string bytes(std::size_t n) {
  return human_bytes(static_cast<double>(n));
}

std::string model_row(const StartFacts& f) {
  std::string text = f.family + ", " + with_commas(f.parameters) + " parameters, ";
  if (f.trained == f.parameters) {
    text += "all trained";
  } else {
    char share[32];
    const auto all = static_cast<double>(f.parameters);
    std::snprintf(share, sizeof share, "%.3g", 100 * static_cast<double>(f.trained) / std::max(1.0, all));
    text += with_commas(f.trained) + " trained (" + share + " %, " + f.method + ")";
  }
  return text + (f.fresh ? ", from scratch" : "");
}

std::string data_row(const StartFacts& f) {
  if (f.streams) return counted(f.rows, "row") + ", streamed";
  std::string text = counted(f.documents, "row");
  if (f.documents != f.rows) text += " of " + with_commas(f.rows);
  text += ", " + with_commas(f.tokens) + " tokens, " + with_commas(f.trained_tokens) + " trained, ";
  if (f.sequences == 0) return text + "not packed";
  return text + "packed into " + with_commas(f.sequences) + " x " + with_commas(f.cutoff);
}

std::string device_row(const StartFacts& f) {
  const std::int64_t ranks = f.batch.world;
  std::string text = f.device;
  if (ranks > 1) text = counted(ranks, "rank") + ", " + counted(f.hosts, "host") + ", first: " + text;
  return text;
}

std::string precision_row(const StartFacts& f) {
  if (f.parameters_in == "auto" || f.gradients_in == "auto" || f.moments_in == "auto") return f.precision;
  if (f.parameters_in == f.gradients_in && f.gradients_in == f.moments_in)
    return f.precision + "; states in " + f.parameters_in;
  return f.precision + "; weights in " + f.parameters_in + ", gradients in " + f.gradients_in +
         ", moments in " + f.moments_in;
}

std::string zero_row(const StartFacts& f) {
  static constexpr const char* kSplit[] = {"each rank holds all states",
                                           "optimizer states are split among ranks",
                                           "optimizer states and gradients are split among ranks",
                                           "optimizer states, gradients and weights are split among ranks"};
  const auto stage =
      static_cast<std::size_t>(std::min<std::int64_t>(3, std::max<std::int64_t>(0, f.zero_stage)));
  std::string text = "stage " + std::to_string(stage);
  if (f.batch.world == 1 && stage > 0) return text + ": one rank, nothing is split";
  if (f.group_size == 1) return text + ": groups of one rank, nothing is split";
  text += std::string(": ") + kSplit[stage];
  if (f.group_size == 0 || f.group_size == f.batch.world) return text;
  return text + ", in groups of " + std::to_string(f.group_size);
}

std::string memory_row(const StartFacts& f) {
  return bytes(f.memory) + (f.on_gpu ? " of " : " per rank; the host has ") + bytes(f.capacity) +
         (f.on_gpu ? " per GPU" : "");
}

std::string batch_row(const StartFacts& f) {
  const config::Batch& b = f.batch;
  return counted(b.global, "sequence") + " = " + with_commas(b.micro) + " per rank x " +
         with_commas(b.accumulation) + " accumulated x " + counted(b.world, "rank");
}

std::string steps_row(const StartFacts& f) {
  char epochs[32];
  std::snprintf(epochs, sizeof epochs, "%.4g", f.epochs);
  std::string text = with_commas(f.steps) + ", " + epochs + (f.epochs == 1 ? " epoch" : " epochs");
  if (f.sft_play && !f.resumed_from.empty()) text += ", resumed at step " + with_commas(f.first_step);
  if (f.first_step < f.steps && f.least_seconds * static_cast<double>(f.steps - f.first_step) >= 1) {
    const double left = static_cast<double>(f.steps - f.first_step);
    text += ", at least " + clock_time(left * f.least_seconds) + " on " + f.rates_of;
  }
  return text;
}

}  // namespace

StartRows start_rows(const StartFacts& f) {
  StartRows rows{{"model", model_row(f)}, {"data", data_row(f)}};
  if (!f.sft_play) rows.emplace_back("devices", device_row(f));
  rows.emplace_back("precision", precision_row(f));
  if (f.sft_play) {
    rows.emplace_back("memory", memory_row(f) + ", ZeRO stage " + std::to_string(f.zero_stage));
  } else {
    rows.emplace_back("ZeRO", zero_row(f));
    rows.emplace_back("memory", memory_row(f));
    rows.emplace_back("batch", batch_row(f));
  }
  rows.emplace_back("steps", steps_row(f));
  if (!f.sft_play && !f.resumed_from.empty())
    rows.emplace_back("resumed", "step " + with_commas(f.first_step) + ", " + f.resumed_from);
  rows.emplace_back("output", f.output + " (details: training.log)");
  return rows;
}

namespace {

constexpr std::size_t kListedGpus = 8;  // more do not fit on a screen

std::string gigabytes(std::uint64_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f GB", static_cast<double>(bytes) / 0x1p30);
  return text.data();
}

}  // namespace

std::vector<std::string> sft_play_lines(const SftPlayStart& start) {
  const std::size_t count = start.gpus.size();
  const bool gpus = count > 0;
  std::vector<std::string> lines;
  const std::string ranks = std::to_string(start.batch.world) + (start.batch.world == 1 ? " rank" : " ranks");
  lines.push_back("[train] Detected " + std::to_string(count) + (count == 1 ? " GPU" : " GPUs") +
                  (gpus ? ":" : ": " + ranks + " on CPUs"));
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    total += start.gpus[i].bytes;
    if (i < kListedGpus)
      lines.push_back("  GPU " + std::to_string(i) + ": " + start.gpus[i].name + " (" +
                      gigabytes(start.gpus[i].bytes) + ")");
  }
  if (count > kListedGpus) lines.back() += " and " + std::to_string(count - kListedGpus) + " more";
  lines.push_back("Total VRAM: " + gigabytes(total));
  if (start.automatic) {
    lines.push_back("Auto-calculated batch size: " + std::to_string(start.batch.micro) + " per " +
                    (gpus ? "GPU" : "rank") +
                    ", gradient accumulation: " + std::to_string(start.batch.accumulation));
  }
  lines.push_back("Effective batch size: " + std::to_string(start.batch.global));
  return lines;
}

}  // namespace octet::train
