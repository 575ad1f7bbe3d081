// The task of task.h with adapters, on a base that was trained for a few steps.
#pragma once

#include <stdexcept>
#include <string>

#include "cli/task.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_writer.h"

namespace octet::test {

/// Returns the task's model after four steps, with fp32 weights.
inline const std::string& adapter_base() {
  static const TemporaryFolder folder("adapter_base");
  static const std::string path = [] {
    const Outcome run =
        trainer(Task::get().train(folder / "base", "max_steps=4 save_strategy=no export_dtype=fp32"));
    if (run.code != 0) throw std::runtime_error(run.both());
    return folder / "base";
  }();
  return path;
}

/// Returns the arguments of a run that trains adapters on the base: six steps, a checkpoint every three.
inline std::string lora(const std::string& output, const std::string& more = "") {
  return Task::get().train(output,
                           "model_name_or_path=" + adapter_base() +
                               " train_from_scratch=false finetuning_type=lora lora_rank=4 max_steps=6 "
                               "save_steps=3 " +
                               more);
}

/// Runs a command on `np` ranks.
inline Outcome on_ranks(int np, const std::string& arguments) {
  if (np == 1) return trainer(arguments);
  return shell(OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) + " " OCTET_TRAINER " " +
               arguments);
}

/// Writes a batch of [2, 12] tokens with labels for probe, and returns its path.
inline std::string probe_batch(const TemporaryFolder& folder) {
  std::vector<std::int64_t> ids(24), labels(24);
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int64_t>(5 + 13 * i % 180), labels[i] = ids[i];
  weights::write_safetensors(folder / "batch.safetensors",
                             {{"input_ids", DType::i64, {2, 12}, 0, 24, ids.data()},
                              {"labels", DType::i64, {2, 12}, 0, 24, labels.data()}});
  return folder / "batch.safetensors";
}

/// Returns a tensor of a file as floats.
inline std::vector<float> floats_of(const std::string& path, const std::string& tensor) {
  const weights::SafetensorsFile file(path);
  std::vector<float> values(static_cast<std::size_t>(file.at(tensor).count));
  file.read(tensor, 0, file.at(tensor).count, values.data());
  return values;
}

/// Returns the logits of probe for `model` and `keys` on `np` ranks.
inline std::vector<float> probed(const TemporaryFolder& folder, const std::string& model,
                                 const std::string& keys = "", int np = 1) {
  const std::string out = folder / "probed.safetensors";
  const Outcome run =
      on_ranks(np, "probe " + model + " --batch " + probe_batch(folder) + " --out " + out + " " + keys);
  EXPECT_EQ(run.code, 0) << run.both();
  return run.code == 0 ? floats_of(out, "logits") : std::vector<float>();
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace octet::test
