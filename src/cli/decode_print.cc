#include "decode_print.h"

#include <cstdio>

#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::cli {

void print_decode_table(const std::string& device, const bench::DecodeBench& b,
                        const bench::DecodeResult& result) {
  const generate::BenchResult& r = result.measured;
  const generate::BenchOptions& o = b.options;
  const double gb = 1e-9;
  std::printf("model              %s, %s parameters\n", b.model.c_str(), with_commas(r.parameters).c_str());
  std::printf("device             %s\n", device.c_str());
  std::printf("precision          %s\n", result.precision.c_str());
  if (b.tensor_parallel_size * b.pipeline_parallel_size > 1) {
    std::printf(
        "split              tensor_parallel_size %d x pipeline_parallel_size %d; bytes are per rank\n",
        b.tensor_parallel_size, b.pipeline_parallel_size);
  }
  std::printf("sequences          %lld with %s tokens of context each\n", static_cast<long long>(o.sequences),
              with_commas(o.context).c_str());
  std::printf("time per step      median %.6f s, min %.6f s, max %.6f s, of %lld steps\n", r.median_seconds,
              r.least_seconds, r.most_seconds, static_cast<long long>(o.steps));
  std::printf("tokens per second  %.1f, %.1f per sequence\n", r.tokens_per_second, 1 / r.median_seconds);
  std::printf("bytes per step     %.3f GB of weights, %.3f GB of keys and values: %.1f GB/s\n",
              gb * r.weight_bytes, gb * r.cache_bytes, gb * r.bytes_per_second);
  std::printf("replayed           %lld of %lld steps, warm-up included\n", static_cast<long long>(r.replayed),
              static_cast<long long>(o.warmup) + o.steps);
  std::printf("prompts            %s tokens per second\n",
              with_commas(static_cast<std::int64_t>(r.prompt_tokens_per_second)).c_str());
  std::printf("memory             %s reserved\n", human_bytes(static_cast<double>(r.reserved_bytes)).c_str());
  std::printf("set-up             %.1f s\n", r.setup_seconds);
  if (r.profile.empty()) return;
  std::printf("\n%-36s %12s %8s\n", "time per step, by operation", "milliseconds", "calls");
  for (const StepProfileRow& row : r.profile) {
    std::printf("%-36s %12.4f %8.0f\n", row.name.c_str(), 1e3 * row.seconds, row.calls);
  }
}

void print_decode_json(const std::string& device, const bench::DecodeBench& b,
                       const bench::DecodeResult& result) {
  const generate::BenchResult& r = result.measured;
  const generate::BenchOptions& o = b.options;
  Json line{{"model", b.model},
            {"parameters", r.parameters},
            {"device", device},
            {"precision", result.precision},
            {"sequences", o.sequences},
            {"context", o.context},
            {"tensor_parallel_size", b.tensor_parallel_size},
            {"pipeline_parallel_size", b.pipeline_parallel_size},
            {"steps", o.steps},
            {"seconds_median", r.median_seconds},
            {"seconds_min", r.least_seconds},
            {"seconds_max", r.most_seconds},
            {"tokens_per_second", r.tokens_per_second},
            {"weight_bytes", r.weight_bytes},
            {"cache_bytes", r.cache_bytes},
            {"bytes_per_second", r.bytes_per_second},
            {"replayed", r.replayed},
            {"prompt_tokens_per_second", r.prompt_tokens_per_second},
            {"reserved_bytes", r.reserved_bytes},
            {"setup_seconds", r.setup_seconds}};
  for (const StepProfileRow& row : r.profile) {
    line["profile"].push_back({{"name", row.name}, {"seconds", row.seconds}, {"calls", row.calls}});
  }
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace octet::cli
