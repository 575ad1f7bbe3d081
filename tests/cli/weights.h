// The weights of a small model, changed and written back in the formats of checkpoints.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_writer.h"
#include "support/program.h"

namespace octet::test {

struct Weight {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
using Weights = std::map<std::string, Weight>;

inline Weights read_weights(const std::string& folder) {
  const weights::WeightFolder files(folder);
  Weights weights;
  for (const auto& tensor : files.tensors()) {
    Weight& w = weights[tensor.name];
    w.shape = tensor.shape;
    w.values.resize(static_cast<std::size_t>(tensor.count));
    files.read(tensor.name, 0, tensor.count, w.values.data());
  }
  return weights;
}

inline void remove_weights(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("model")) std::filesystem::remove(entry.path());
  }
}

/// Replaces the weights of a folder by files of at most `max_bytes`.
inline void write_weights(const std::string& folder, const Weights& weights, DType dtype = DType::f32,
                          std::int64_t max_bytes = std::int64_t{1} << 40) {
  std::vector<weights::TensorHeader> headers;
  for (const auto& [name, w] : weights) headers.push_back({name, dtype, w.shape});
  remove_weights(folder);
  const weights::ShardPlan plan = weights::plan_shards(headers, max_bytes);
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    weights::SafetensorsWriter writer(folder + "/" + plan.files[i], plan.tensors[i]);
    for (const auto& tensor : writer.order()) {
      const auto& values = weights.at(tensor.name).values;
      writer.append(values.data(), static_cast<std::int64_t>(values.size()));
    }
    writer.publish();
  }
  if (plan.files.size() > 1) spill(folder + "/model.safetensors.index.json", weights::index_json(plan));
}

/// Replaces a weight by a tensor of integers.
inline void write_integer_weight(const std::string& path, const std::string& name,
                                 std::vector<std::int64_t> shape) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(element_count(shape, name)), 1);
  const auto count = static_cast<std::int64_t>(values.size());
  weights::write_safetensors(path, {{name, DType::i64, std::move(shape), 0, count, values.data()}});
}

/// Copies a golden model without its golden results.
inline void copy_golden_model(const std::string& name, const std::string& to) {
  namespace fs = std::filesystem;
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(OCTET_SOURCE_DIR "/tests/golden/models/" + name)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with("golden") && file != "config.legacy.json")
      fs::copy_file(entry.path(), to + "/" + file);
  }
}

/// Writes a batch of two rows of `length` tokens below `vocabulary`.
inline void write_batch(const std::string& path, std::int64_t length, std::int64_t vocabulary) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(2 * length));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int64_t>((i * 37 + i * i * 11 + 5) % static_cast<std::size_t>(vocabulary));
  }
  std::vector<std::int64_t> labels = ids;
  const auto count = static_cast<std::int64_t>(ids.size());
  weights::write_safetensors(path, {{"input_ids", DType::i64, {2, length}, 0, count, ids.data()},
                                    {"labels", DType::i64, {2, length}, 0, count, labels.data()}});
}

inline std::vector<float> read_floats(const weights::SafetensorsFile& file, const std::string& name) {
  const auto& tensor = file.at(name);
  std::vector<float> values(static_cast<std::size_t>(tensor.count));
  file.read(name, 0, tensor.count, values.data());
  return values;
}

}  // namespace octet::test
