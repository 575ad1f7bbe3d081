// Golden models, and a parameter source that holds all parameters on one rank.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/model/layout.h"
#include "octet/model/transformer.h"
#include "octet/weights/safetensors.h"

namespace octet::model::testing {

inline std::string golden_folder(const std::string& name) {
  return std::string(OCTET_SOURCE_DIR) + "/tests/golden/models/" + name;
}

/// Returns a golden model's architecture with the tensor names of its weights.
inline Architecture golden_architecture(const std::string& name) {
  Architecture architecture = read_architecture(golden_folder(name));
  if (!architecture.multimodal) return architecture;
  const weights::SafetensorsFile file(golden_folder(name) + "/model.safetensors");
  name_tensors(architecture, [&](const std::string& tensor) { return file.find(tensor) != nullptr; });
  return architecture;
}

/// A replicated source. Weights are in the compute dtype, or in E4M3 with the scales of the recipe.
class ReplicatedSource : public ParameterSource {
 public:
  ReplicatedSource(Arena& arena, const Architecture& architecture, const precision::Recipe& recipe)
      : arena_(arena), recipe_(recipe), layout_(build_layout(architecture)) {
    const Device& device = arena.device();
    const bool transposed = recipe.fp8() && ops::gemm_needs_transposed_fp8(device);
    for (const GroupSpec& group : layout_.groups) {
      GroupParameters parameters;
      GroupGradients gradients;
      for (const SegmentSpec& segment : group.segments) {
        std::vector<ops::Operand> weights;
        std::vector<std::vector<ops::Operand>> parts;
        std::vector<ops::Matrix> matrices;
        // Like in a store: the tensors of a segment follow each other.
        const std::size_t room = static_cast<std::size_t>(segment.used) * sizeof(float);
        auto* const all = arena.reserve_as<std::byte>("weights", room);
        auto* const sums = segment.trainable ? arena.reserve_as<std::byte>("gradients", room) : nullptr;
        for (const TensorSpec& t : segment.tensors) {
          const std::size_t begin = static_cast<std::size_t>(t.offset) * sizeof(float);
          const DType dtype = segment.kind == ParameterKind::vector       ? DType::f32
                              : t.fp8 && recipe.fp8() && !recipe.blocks() ? recipe.forward_format
                                                                          : recipe.compute;
          const auto n = static_cast<std::size_t>(t.count());
          ops::Operand w{.dtype = dtype, .rows = t.rows, .cols = t.cols};
          auto* data = reinterpret_cast<std::uint8_t*>(all + begin);
          auto* flipped =
              is_fp8(dtype) && transposed ? arena.reserve_as<std::uint8_t>("weights", n) : nullptr;
          w.data = data;
          std::vector<ops::Operand> runs;
          if (is_fp8(dtype)) {
            const auto scaled = scaled_parts(t, recipe.scale_parts);
            // Like in a store: the scales of a tensor are 16 bytes apart.
            auto* scale = arena.reserve_as<float>("scales", 4 * scaled.size());
            for (const ScaledPart& part : scaled) {
              ops::Operand run{.data = data + part.begin, .dtype = dtype, .cols = t.cols};
              run.rows = part.count / t.cols;
              if (flipped != nullptr) run.transposed = flipped + part.begin;
              run.scale_inv = std::exchange(scale, scale + 4);
              runs.push_back(run);
            }
          }
          parts.push_back(runs);
          weights.push_back(runs.size() == 1 ? runs.front() : w);
          matrices.push_back({.data = sums == nullptr ? nullptr : sums + begin,
                              .dtype = DType::f32,
                              .rows = t.rows,
                              .cols = t.cols,
                              .ld = t.cols});
        }
        parameters.weights.push_back(std::move(weights));
        parameters.parts.push_back(std::move(parts));
        gradients.gradients.push_back(std::move(matrices));
      }
      parameters_.push_back(std::move(parameters));
      gradients_.push_back(std::move(gradients));
      held_.push_back(0);
      open_.push_back(false);
    }
    stream_ = arena.device().make_stream({.name = "source"});
  }

  /// Fills a stored tensor from f32 values.
  void set(std::size_t group, std::size_t segment, std::size_t tensor, const std::vector<float>& values) {
    auto at = values.begin();
    for (const ops::Operand& w : parameters_[group].operands(segment, tensor)) {
      const auto end = at + w.rows * w.cols;
      fill(w, {at, end});
      at = end;
    }
  }

  void fill(const ops::Operand& w, const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * size_of(w.dtype));
    if (is_fp8(w.dtype)) {
      float amax = 0;
      for (const float v : values) amax = std::max(amax, std::abs(v));
      const float scale = amax > 0 ? fp8_max(w.dtype) / amax : 1.0f;
      for (std::size_t i = 0; i < values.size(); ++i) {
        bytes[i] = static_cast<std::byte>(to_fp8(values[i] * scale, w.dtype));
      }
      const float inverse = 1.0f / scale;
      copy_in(const_cast<float*>(w.scale_inv), &inverse, sizeof(float));
      if (w.transposed != nullptr) {
        std::vector<std::byte> t(bytes.size());
        for (std::int64_t r = 0; r < w.rows; ++r) {
          for (std::int64_t c = 0; c < w.cols; ++c) {
            t[static_cast<std::size_t>(c * w.rows + r)] = bytes[static_cast<std::size_t>(r * w.cols + c)];
          }
        }
        copy_in(const_cast<void*>(w.transposed), t.data(), t.size());
      }
    } else if (w.dtype == DType::bf16) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint16_t b = to_bf16(values[i]);
        std::memcpy(bytes.data() + 2 * i, &b, 2);
      }
    } else {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    copy_in(const_cast<void*>(w.data), bytes.data(), bytes.size());
  }

  /// Loads a folder. `adapter`: a file with tensors under PEFT's names.
  void load(const std::string& folder, const std::string& adapter = "") {
    const weights::WeightFolder files(folder);
    std::optional<weights::SafetensorsFile> own;
    if (!adapter.empty()) own.emplace(adapter);
    for_each([&](std::size_t g, std::size_t s, std::size_t i, const TensorSpec& t) {
      std::vector<float> values(static_cast<std::size_t>(t.count()));
      for (const NamedPart& part : t.parts) {
        if (own && own->find(part.name) != nullptr) {
          EXPECT_EQ(own->at(part.name).shape, part.shape) << part.name;
          own->read(part.name, 0, part.count, values.data() + part.begin);
          continue;
        }
        files.expect(part.name, part.shape);
        files.read(part.name, 0, part.count, values.data() + part.begin);
      }
      set(g, s, i, values);
    });
  }

  /// Stores `change` of the folder's values as the tensor with this name, which has no other parts.
  void change(const std::string& folder, const std::string& name,
              const std::function<float(float value, std::size_t index)>& change) {
    std::size_t found = 0;
    for_each([&](std::size_t g, std::size_t s, std::size_t i, const TensorSpec& t) {
      if (t.parts.size() != 1 || t.parts.front().name != name) return;
      std::vector<float> values(static_cast<std::size_t>(t.count()));
      weights::WeightFolder(folder).read(name, 0, t.count(), values.data());
      for (std::size_t at = 0; at < values.size(); ++at) values[at] = change(values[at], at);
      set(g, s, i, values);
      ++found;
    });
    EXPECT_EQ(found, 1U) << name;
  }

  void initialise(std::uint64_t seed) {
    const std::unique_ptr<Device> host = make_cpu_device();
    const std::unique_ptr<Stream> stream = host->make_stream({.name = "fresh weights"});
    for_each([&](std::size_t g, std::size_t s, std::size_t i, const TensorSpec& t) {
      std::vector<float> values(static_cast<std::size_t>(t.count()));
      model::initialise(*stream, t, {.seed = seed, .count = t.count(), .out = values.data()});
      set(g, s, i, values);
    });
  }

  /// Prepares a step: gradients that a GEMM overwrites are filled with NaN, all others with zeros.
  void start_step() {
    for_each([&](std::size_t g, std::size_t s, std::size_t i, const TensorSpec& t) {
      if (gradients_[g].gradients[s][i].data == nullptr) return;
      const std::vector<float> fresh(static_cast<std::size_t>(t.count()),
                                     t.gradient_by_gemm ? std::nanf("") : 0.0f);
      copy_in(gradients_[g].gradients[s][i].data, fresh.data(), fresh.size() * sizeof(float));
    });
    for (GroupGradients& g : gradients_) g.overwrite = true;
  }

  /// Returns the gradients by Hugging Face name.
  std::map<std::string, std::vector<float>> named_gradients() {
    std::map<std::string, std::vector<float>> named;
    for_each([&](std::size_t g, std::size_t s, std::size_t i, const TensorSpec& t) {
      if (gradients_[g].gradients[s][i].data == nullptr) return;
      std::vector<float> values(static_cast<std::size_t>(t.count()));
      arena_.device().copy_to_host(*stream_, values.data(), gradients_[g].gradients[s][i].data,
                                   values.size() * sizeof(float));
      stream_->synchronize();
      for (const NamedPart& part : t.parts) {
        const auto* begin = values.data() + part.begin;
        named[part.name] = std::vector<float>(begin, begin + part.count);
      }
    });
    return named;
  }

  const ParameterLayout& layout() const override { return layout_; }
  const GroupParameters& acquire(int group, Pass pass, Stream&) override {
    if (pass == Pass::backward) acquired_backward.insert(group);
    ++held_[static_cast<std::size_t>(group)];
    return parameters_[static_cast<std::size_t>(group)];
  }
  void release(int group, Pass, Stream&) override {
    EXPECT_GT(held_[static_cast<std::size_t>(group)]--, 0) << "released without acquire";
  }
  void blocks_done(Stream&) override {}
  const GroupGradients& gradients(int group, Stream&) override {
    open_[static_cast<std::size_t>(group)] = true;
    return gradients_[static_cast<std::size_t>(group)];
  }
  void give_back(int group, Stream&) override {
    EXPECT_TRUE(open_[static_cast<std::size_t>(group)]) << "given back twice or never asked for";
    open_[static_cast<std::size_t>(group)] = false;
    gradients_[static_cast<std::size_t>(group)].overwrite = false;
    ++given_back;
  }
  /// Whether no group is held or open.
  bool at_rest() const {
    for (std::size_t g = 0; g < held_.size(); ++g) {
      if (held_[g] != 0 || open_[g]) return false;
    }
    return true;
  }
  int given_back = 0;
  std::set<int> acquired_backward;  ///< groups that a backward pass acquired

 private:
  template <class F>
  void for_each(F&& visit) const {
    for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
      const GroupSpec& group = layout_.groups[g];
      for (std::size_t s = 0; s < group.segments.size(); ++s) {
        for (std::size_t i = 0; i < group.segments[s].tensors.size(); ++i) {
          visit(g, s, i, group.segments[s].tensors[i]);
        }
      }
    }
  }
  void copy_in(void* to, const void* from, std::size_t bytes) {
    arena_.device().copy_to_device(*stream_, to, from, bytes);
    stream_->synchronize();
  }

  Arena& arena_;
  precision::Recipe recipe_;
  ParameterLayout layout_;
  std::vector<GroupParameters> parameters_;
  std::vector<GroupGradients> gradients_;
  std::vector<int> held_;
  std::vector<bool> open_;
  std::unique_ptr<Stream> stream_;
};

/// A batch on the host: consecutive documents, and a label row for every token.
struct HostBatch {
  std::vector<std::int32_t> ids, positions, targets, rows, cu_seqlens;
  std::vector<std::int32_t> experts;  ///< MicroBatch::experts; empty: null
  std::int64_t max_length = 0;
  std::int64_t tokens() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t label_tokens() const {
    std::int64_t n = 0;
    for (const std::int32_t t : targets) n += t >= 0;
    return n;
  }
  void add_document(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& labels) {
    if (cu_seqlens.empty()) cu_seqlens.push_back(0);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      rows.push_back(static_cast<std::int32_t>(ids.size()));
      ids.push_back(tokens[i]);
      positions.push_back(static_cast<std::int32_t>(i));
      targets.push_back(i + 1 < labels.size() ? labels[i + 1] : -1);
    }
    cu_seqlens.push_back(static_cast<std::int32_t>(ids.size()));
    max_length = std::max(max_length, static_cast<std::int64_t>(tokens.size()));
  }
  /// Keeps only rows with a label, as in training.
  void drop_unlabelled_rows() {
    std::vector<std::int32_t> r, t;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (targets[i] < 0) continue;
      r.push_back(rows[i]);
      t.push_back(targets[i]);
    }
    rows = r;
    targets = t;
  }
};

inline std::vector<std::int32_t> read_ints(const weights::SafetensorsFile& file, const std::string& name) {
  const weights::StoredTensor& t = file.at(name);
  std::vector<std::int64_t> wide(static_cast<std::size_t>(t.count));
  file.read(name, 0, t.count, wide.data());
  return {wide.begin(), wide.end()};
}

inline std::vector<float> read_floats(const weights::SafetensorsFile& file, const std::string& name) {
  const weights::StoredTensor& t = file.at(name);
  std::vector<float> values(static_cast<std::size_t>(t.count));
  file.read(name, 0, t.count, values.data());
  return values;
}

/// Reads a batch: "" is the batch of two rows, "packed." the row of three documents.
inline HostBatch read_batch(const weights::SafetensorsFile& file, const std::string& prefix) {
  const auto ids = read_ints(file, prefix + "input_ids"), labels = read_ints(file, prefix + "labels");
  const auto length = static_cast<std::size_t>(file.at(prefix + "input_ids").shape.back());
  std::vector<std::int32_t> document(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) document[i] = static_cast<std::int32_t>(i / length);
  if (!prefix.empty()) document = read_ints(file, prefix + "document");
  HostBatch batch;
  for (std::size_t begin = 0; begin < ids.size();) {
    std::size_t end = begin;
    while (end < ids.size() && document[end] == document[begin]) ++end;
    const auto at = [&](const std::vector<std::int32_t>& v, std::size_t i) {
      return v.begin() + static_cast<std::ptrdiff_t>(i);
    };
    batch.add_document({at(ids, begin), at(ids, end)}, {at(labels, begin), at(labels, end)});
    begin = end;
  }
  return batch;
}

struct RunOptions {
  precision::Recipe recipe;
  Recompute recompute = Recompute::none;
  std::size_t logits_bytes = std::size_t{1} << 20;
  bool worker = false;
  bool gradients = true;
  std::int64_t spare_tokens = 0;  ///< additional tokens of room in the buffers
  double router_z_loss = 0, expert_capacity = 0;
  TokenLoss token_loss = {};
  std::optional<ops::PreferenceRule> preference = {};
  std::optional<ops::JudgementRule> judgement = {};
  std::optional<TeacherLoss> teacher_loss = {};
  bool counts_hits = false;
  double embedding_noise = 0;
};

struct RunResult {
  double loss_sum = 0;
  std::vector<float> logits;  ///< [label rows, vocabulary]
  std::map<std::string, std::vector<float>> gradients;
};

/// A device with a model, with buffers for batches like `shape`.
class Machine {
 public:
  Machine(const Architecture& architecture, const HostBatch& shape, const RunOptions& options)
      : device(make_cpu_device({.threads = 1, .compute_worker = options.worker})),
        arena(*device),
        stream(device->make_stream({.name = "compute"})),
        source(arena, architecture, options.recipe),
        audit(options.recipe),
        core(architecture, options.recipe, arena,
             {.max_tokens = shape.tokens() + options.spare_tokens,
              .max_length = shape.max_length + options.spare_tokens,
              .training = options.gradients,
              .recompute = options.recompute,
              .router_z_loss = options.router_z_loss,
              .expert_capacity = options.expert_capacity,
              .logits_bytes = options.logits_bytes,
              .token_loss = options.token_loss,
              .preference = options.preference,
              .judgement = options.judgement,
              .teacher_loss = options.teacher_loss,
              .counts_hits = options.counts_hits,
              .embedding_noise = options.embedding_noise},
             &audit),
        loss(arena.reserve_as<double>("loss", 1)) {}

  template <class T>
  T* upload(const std::vector<T>& host) {
    T* to = arena.reserve_as<T>("batch", host.size() + 1);
    device->copy_to_device(*stream, to, host.data(), host.size() * sizeof(T));
    stream->synchronize();
    return to;
  }
  MicroBatch upload_batch(const HostBatch& b) {
    return {.ids = upload(b.ids),
            .positions = upload(b.positions),
            .label_rows = upload(b.rows),
            .targets = upload(b.targets),
            .labels = static_cast<std::int64_t>(b.rows.size()),
            .documents = {.cu_seqlens = upload(b.cu_seqlens),
                          .host_cu_seqlens = b.cu_seqlens.data(),
                          .count = static_cast<std::int64_t>(b.cu_seqlens.size()) - 1,
                          .max_length = b.max_length,
                          .tokens = b.tokens()},
            .experts = b.experts.empty() ? nullptr : upload(b.experts)};
  }
  std::vector<float> download(const ops::ConstMatrix& m) {
    std::vector<float> values(static_cast<std::size_t>(m.rows * m.cols));
    std::vector<std::byte> bytes(values.size() * size_of(m.dtype));
    device->copy_to_host(*stream, bytes.data(), m.data, bytes.size());
    stream->synchronize();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (m.dtype == DType::f32) {
        std::memcpy(&values[i], bytes.data() + 4 * i, 4);
      } else {
        std::uint16_t b = 0;
        std::memcpy(&b, bytes.data() + 2 * i, 2);
        values[i] = from_bf16(b);
      }
    }
    return values;
  }
  RunResult run(const HostBatch& host, bool training) {
    const MicroBatch batch = upload_batch(host);
    RunResult result;
    const LogitsHook hook = [&](Stream&, const ops::ConstMatrix& logits, std::int64_t first) {
      EXPECT_EQ(result.logits.size(), static_cast<std::size_t>(first * logits.cols));
      const std::vector<float> rows = download(logits);
      result.logits.insert(result.logits.end(), rows.begin(), rows.end());
    };
    device->zero(*stream, loss, sizeof(double));
    if (training) {
      source.start_step();
      core.train(source, *stream, batch, loss, hook);
    } else {
      core.evaluate(source, *stream, batch, loss, hook);
    }
    device->copy_to_host(*stream, &result.loss_sum, loss, sizeof(double));
    stream->synchronize();
    EXPECT_TRUE(source.at_rest());
    if (training) result.gradients = source.named_gradients();
    return result;
  }

  std::unique_ptr<Device> device;
  Arena arena;
  std::unique_ptr<Stream> stream;
  ReplicatedSource source;
  precision::Audit audit;
  Transformer core;
  double* loss;
};

inline double relative_l2(const std::vector<float>& a, const std::vector<float>& b, double factor = 1.0) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = static_cast<double>(a[i]) * factor - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

}  // namespace octet::model::testing
