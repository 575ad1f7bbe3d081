#include "plan/generate_print.h"

#include <cstdio>

#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::cli {

using planner::Fit;
using planner::GeneratePlan;
using planner::GenerationReport;
using planner::PlanTarget;

void print_generate_report(const GeneratePlan& plan, const PlanTarget& target,
                           const GenerationReport& report) {
  const Fit& asked = report.asked;
  std::printf("model        %s, %s parameters\n", plan.model.c_str(), with_commas(report.parameters).c_str());
  std::printf("generation   --dtype %s --kv-cache-dtype %s --batch %lld --max-length %lld on %s\n",
              plan.dtype.c_str(), plan.kv_cache_dtype.c_str(), static_cast<long long>(plan.batch),
              static_cast<long long>(plan.max_length), target.name.c_str());
  const int tensor = plan.tensor_parallel_size, stages = plan.pipeline_parallel_size;
  if (tensor * stages > 1) {
    std::printf("split        --tensor-parallel-size %d --pipeline-parallel-size %d: %d ranks\n", tensor,
                stages, tensor * stages);
  }
  std::printf("\nmemory per rank%s\n", tensor * stages > 1 ? ", of the rank with the most" : "");
  const double held = asked.weights + asked.cache + static_cast<double>(asked.staging);
  std::printf("  %-32s %12s\n", "weights", human_bytes(asked.weights).c_str());
  std::printf("  %-32s %12s, %s per question; %s pages of %lld tokens\n", "keys and values",
              human_bytes(asked.cache).c_str(),
              human_bytes(asked.cache / static_cast<double>(asked.batch)).c_str(),
              with_commas(asked.pages).c_str(), static_cast<long long>(plan.kv_page_tokens));
  if (asked.staging > 0) {
    std::printf("  %-32s %12s\n", "message buffers", human_bytes(static_cast<double>(asked.staging)).c_str());
  }
  std::printf("  %-32s %12s\n", "all else", human_bytes(static_cast<double>(asked.bytes) - held).c_str());
  const bool fit = asked.bytes <= target.memory;
  std::printf("  %-32s %12s\n", "in all", human_bytes(static_cast<double>(asked.bytes)).c_str());
  std::printf("  %-32s %12s: %s\n", "the device has", human_bytes(static_cast<double>(target.memory)).c_str(),
              fit ? "fits" : "does NOT fit");
  const bool gpu = target.traits().has_known_rates;
  std::printf("\n%8s %12s %12s", "batch", "memory", "");
  if (gpu) std::printf(" %14s %14s", "floor, ms", "tokens/s");
  std::printf("\n");
  for (const Fit& f : report.fits) {
    std::printf("%8lld %12s %12s", static_cast<long long>(f.batch),
                human_bytes(static_cast<double>(f.bytes)).c_str(),
                f.bytes <= target.memory ? "fits" : "too much");
    if (gpu) {
      std::printf(" %14.3f %14s", 1e3 * f.floor_seconds,
                  with_commas(static_cast<std::int64_t>(f.tokens_per_second())).c_str());
    }
    std::printf("\n");
  }
  if (gpu) {
    std::printf(
        "\n"
        "The floor is the least time per step on %s after %lld tokens of each question: weights, keys and\n"
        "values read once, or its GEMMs, whichever takes longer.%s\n",
        target.rates.card, static_cast<long long>((plan.max_length - 1) / 2),
        tensor * stages > 1 ? " Messages between ranks take additional time." : "");
  }
  if (!plan.note.empty()) std::printf("\nnote: %s\n", plan.note.c_str());
}

void print_generate_json(const GeneratePlan& plan, const PlanTarget& target, const GenerationReport& report) {
  const Fit& asked = report.asked;
  Json memory = Json::object(), batches = Json::array();
  for (const plan::MemoryRow& row : asked.memory.rows) memory[row.name] = row.bytes;
  for (const Fit& f : report.fits) {
    batches.push_back({{"batch", f.batch},
                       {"total_bytes", f.bytes},
                       {"fits", f.bytes <= target.memory},
                       {"floor_seconds", f.floor_seconds},
                       {"tokens_per_second_at_most", f.tokens_per_second()}});
  }
  std::printf("%s\n", Json{{"model", plan.model},
                           {"notes", plan.note.empty() ? Json::array() : Json::array({plan.note})},
                           {"device", target.traits().word},
                           {"dtype", plan.dtype},
                           {"kv_cache_dtype", plan.kv_cache_dtype},
                           {"batch", plan.batch},
                           {"max_length", plan.max_length},
                           {"tensor_parallel_size", plan.tensor_parallel_size},
                           {"pipeline_parallel_size", plan.pipeline_parallel_size},
                           {"memory", memory},
                           {"weight_bytes", asked.weights},
                           {"cache_bytes", asked.cache},
                           {"cache_pages", asked.pages},
                           {"cache_page_tokens", plan.kv_page_tokens},
                           {"step_weight_bytes", asked.weights_read},
                           {"step_cache_bytes", asked.cache_read},
                           {"messages_bytes", asked.staging},
                           {"total_bytes", asked.bytes},
                           {"total_bytes_of_ranks", report.bytes_of_ranks},
                           {"device_bytes", target.memory},
                           {"fits", asked.bytes <= target.memory},
                           {"largest_batch", report.largest},
                           {"batches", batches}}
                          .dump()
                          .c_str());
}

}  // namespace octet::cli
