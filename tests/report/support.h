// A synthetic run for the tests of report.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/report/reporter.h"
#include "support/temporary_folder.h"

namespace octet::report::test {

class Run : public testing::Test {
 protected:
  octet::test::TemporaryFolder scratch_{"report"};
  const std::string folder_ = scratch_ / "run";  // not there yet

  RunFacts facts(std::int64_t first = 0, std::int64_t total = 20) const {
    RunFacts f;
    f.output_dir = folder_;
    f.run_name = "a \"run\" | with <signs>";
    f.tensorboard = true;
    f.plot = true;
    f.examples = 1000;
    f.epochs = 2;
    f.total_steps = total;
    f.first_step = first;
    f.logging_steps = 5;
    f.micro_batch = 4;
    f.accumulation = 2;
    f.world = 2;
    f.trainable_parameters = 1234567;
    f.all_parameters = 1234567;
    f.flops_per_token = 6e6;
    f.base_model = "org/model";
    f.datasets = {"a", "b"};
    f.hyperparameters = {{"learning_rate", "0.001"}};
    return f;
  }
  static StepFacts step(std::int64_t n) {
    StepFacts f;
    f.step = n;
    f.epoch = static_cast<double>(n) / 10;
    f.loss = 3 * std::exp(-0.1 * static_cast<double>(n)) + 1.0 / 3;
    f.grad_norm = 0.5;
    f.learning_rate = 1e-5 * static_cast<double>(n);
    f.seconds = 0.5;
    f.tokens = 1000;
    f.label_tokens = 600;
    f.samples = 16;
    f.memory_bytes = 1 << 30;
    f.memory_peak_bytes = 3u << 29;
    f.rank_losses = {f.loss, f.loss};
    return f;
  }
  std::vector<Json> rows() const {
    std::vector<Json> result;
    for (const auto& line : split(read_file(folder_ + "/trainer_log.jsonl"), '\n')) {
      if (!line.empty()) result.push_back(parse_json(line, "log"));
    }
    return result;
  }
  Json json(const std::string& name) const { return read_json(folder_ + "/" + name); }
};

}  // namespace octet::report::test
