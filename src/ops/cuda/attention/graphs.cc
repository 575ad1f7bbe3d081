#include "cuda/attention/graphs.h"

#include "octet/base/error.h"
#include "octet/base/log.h"

#ifdef OCTET_HAVE_CUDNN
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend loads cuDNN's functions from it
}

namespace octet::ops::cuda {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// Loads cuDNN once. Logs a failure once.
bool load_cudnn() {
  static const bool loaded = [] {
    // Otherwise the frontend loads the first runtime that it finds.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", "libcudart.so.13", 0);
    for (const char* name : {"libcudnn.so.9", "libcudnn.so"}) {
      fe::cudnn_dlhandle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
      if (fe::cudnn_dlhandle != nullptr) return true;
    }
    const char* why = dlerror();
    log::warn(std::string("cuDNN cannot be loaded, attention runs on slower kernels: ") +
              (why != nullptr ? why : "libcudnn.so.9 not found"));
    return false;
  }();
  return loaded;
}

enum Uid : std::int64_t {
  uid_q = 1,
  uid_k,
  uid_v,
  uid_out,
  uid_stats,
  uid_d_out,
  uid_d_q,
  uid_d_k,
  uid_d_v,
  uid_lengths,
  uid_lengths_kv,
  uid_qkv_offsets,
  uid_out_offsets,
  uid_d_out_offsets,
  uid_stats_offsets,
  uid_d_q_offsets,
  uid_d_kv_offsets
};

void require(fe::error_t status, const char* what) {
  if (status.is_good()) return;
  throw Error(std::string(what) + ": " + status.get_message());
}

/// Describes the tensors of one graph.
class Builder {
 public:
  explicit Builder(const GraphShape& shape) : shape_(shape), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  std::shared_ptr<fe::graph::Graph> forward() {
    const Heads& h = shape_.heads;
    const Tensor at_qkv = offsets("qkv_offsets", uid_qkv_offsets);
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(shape_.stats)
                       .set_causal_mask(true)
                       .set_attn_scale(shape_.scale);
    if (shape_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(shape_.window));
    if (shape_.packed) {
      options.set_padding_mask(true)
          .set_seq_len_q(lengths("lengths", uid_lengths))
          .set_seq_len_kv(lengths("lengths_kv", uid_lengths_kv));
    }
    auto [out, stats] = graph_->sdpa(rows("q", uid_q, h.q_heads, shape_.qkv_ld, at_qkv),
                                     rows("k", uid_k, h.kv_heads, shape_.qkv_ld, at_qkv),
                                     rows("v", uid_v, h.kv_heads, shape_.qkv_ld, at_qkv), std::move(options));
    result(out, uid_out, h.q_heads, shape_.out_ld, offsets("out_offsets", uid_out_offsets));
    if (shape_.stats) {
      stats->set_output(true).set_uid(uid_stats).set_data_type(fe::DataType_t::FLOAT);
      stats->set_dim({shape_.batch, h.q_heads, shape_.length, 1}).set_stride(stats_stride());
      if (shape_.packed) stats->set_ragged_offset(offsets("stats_offsets", uid_stats_offsets));
    }
    return graph_;
  }

  std::shared_ptr<fe::graph::Graph> backward() {
    const Heads& h = shape_.heads;
    const Tensor at_qkv = offsets("qkv_offsets", uid_qkv_offsets);
    const Tensor at_d_kv = offsets("d_kv_offsets", uid_d_kv_offsets);
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_causal_mask(true)
                       .set_deterministic_algorithm(shape_.fixed_order)
                       .set_attn_scale(shape_.scale);
    if (shape_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(shape_.window));
    if (shape_.packed) {
      options.set_padding_mask(true)
          .set_seq_len_q(lengths("lengths", uid_lengths))
          .set_seq_len_kv(lengths("lengths_kv", uid_lengths_kv))
          .set_max_total_seq_len_q(shape_.most_tokens)
          .set_max_total_seq_len_kv(shape_.most_tokens);
    }
    auto stats = graph_->tensor(fe::graph::Tensor_attributes()
                                    .set_name("stats")
                                    .set_uid(uid_stats)
                                    .set_data_type(fe::DataType_t::FLOAT)
                                    .set_dim({shape_.batch, h.q_heads, shape_.length, 1})
                                    .set_stride(stats_stride()));
    if (shape_.packed) stats->set_ragged_offset(offsets("stats_offsets", uid_stats_offsets));
    const Tensor q = rows("q", uid_q, h.q_heads, shape_.qkv_ld, at_qkv);
    const Tensor k = rows("k", uid_k, h.kv_heads, shape_.qkv_ld, at_qkv);
    const Tensor v = rows("v", uid_v, h.kv_heads, shape_.qkv_ld, at_qkv);
    const Tensor out =
        rows("out", uid_out, h.q_heads, shape_.out_ld, offsets("out_offsets", uid_out_offsets));
    const Tensor d_out =
        rows("d_out", uid_d_out, h.q_heads, shape_.d_out_ld, offsets("d_out_offsets", uid_d_out_offsets));
    auto [d_q, d_k, d_v] = graph_->sdpa_backward(q, k, v, out, d_out, stats, std::move(options));
    result(d_q, uid_d_q, h.q_heads, shape_.d_q_ld, offsets("d_q_offsets", uid_d_q_offsets));
    result(d_k, uid_d_k, h.kv_heads, shape_.d_kv_ld, at_d_kv);
    result(d_v, uid_d_v, h.kv_heads, shape_.d_kv_ld, at_d_kv);
    return graph_;
  }

 private:
  std::vector<std::int64_t> stride(std::int64_t ld) const {
    return {shape_.length * ld, shape_.heads.head_dim, ld, 1};
  }
  std::vector<std::int64_t> stats_stride() const {
    const std::int64_t heads = shape_.heads.q_heads, length = shape_.length;
    if (shape_.packed) return {length * heads, 1, heads, 1};
    return {heads * length, length, 1, 1};
  }
  Tensor rows(const char* name, Uid uid, std::int64_t heads, std::int64_t ld, const Tensor& at) {
    Tensor t = graph_->tensor(fe::graph::Tensor_attributes()
                                  .set_name(name)
                                  .set_uid(uid)
                                  .set_data_type(fe::DataType_t::BFLOAT16)
                                  .set_dim({shape_.batch, heads, shape_.length, shape_.heads.head_dim})
                                  .set_stride(stride(ld)));
    if (shape_.packed) t->set_ragged_offset(at);
    return t;
  }
  void result(const Tensor& t, Uid uid, std::int64_t heads, std::int64_t ld, const Tensor& at) {
    t->set_output(true).set_uid(uid).set_data_type(fe::DataType_t::BFLOAT16);
    t->set_dim({shape_.batch, heads, shape_.length, shape_.heads.head_dim}).set_stride(stride(ld));
    if (shape_.packed) t->set_ragged_offset(at);
  }
  Tensor offsets(const char* name, Uid uid) {
    if (!shape_.packed) return nullptr;
    return numbers(name, uid, shape_.batch + 1, fe::DataType_t::INT64);
  }
  Tensor lengths(const char* name, Uid uid) {
    return numbers(name, uid, shape_.batch, fe::DataType_t::INT32);
  }
  Tensor numbers(const char* name, Uid uid, std::int64_t count, fe::DataType_t type) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_name(name)
                              .set_uid(uid)
                              .set_data_type(type)
                              .set_dim({count, 1, 1, 1})
                              .set_stride({1, 1, 1, 1}));
  }

  const GraphShape& shape_;
  std::shared_ptr<fe::graph::Graph> graph_;
};

using Key = std::array<std::int64_t, 16>;

Key key_of(const GraphShape& s) {
  return {s.backward + 2 * s.packed + 4 * s.stats + 8 * s.fixed_order,
          s.batch,
          s.length,
          s.most_tokens,
          s.heads.q_heads,
          s.heads.kv_heads,
          s.heads.head_dim,
          s.qkv_ld,
          s.out_ld,
          s.d_out_ld,
          s.d_q_ld,
          s.d_kv_ld,
          std::bit_cast<std::int32_t>(s.scale),
          s.window,
          0,
          0};
}

std::string shown(const GraphShape& s) {
  return std::string(s.backward ? "backward" : "forward") + (s.fixed_order ? " in a fixed order, " : ", ") +
         std::to_string(s.batch) + (s.packed ? " documents of at most " : " documents of ") +
         std::to_string(s.length) + " tokens, heads " + std::to_string(s.heads.q_heads) + "/" +
         std::to_string(s.heads.kv_heads) + " of " + std::to_string(s.heads.head_dim) +
         (s.window > 0 ? ", window " + std::to_string(s.window) : "");
}

struct Entry {
  std::shared_ptr<fe::graph::Graph> graph;  ///< null: cuDNN does not build it
  std::size_t scratch_bytes = 0;
  bool told = false;  ///< a lack of scratch has been logged
};

/// cuDNN on one device.
class Graphs {
 public:
  const Entry& find(cudaStream_t stream, const GraphShape& shape) {
    const std::lock_guard lock(mutex_);
    const Key key = key_of(shape);
    if (const auto it = entries_.find(key); it != entries_.end()) return it->second;
    Entry entry;
    try {
      entry = build(stream, shape);
    } catch (const std::exception& e) {
      log::warn("attention runs on slower kernels, cuDNN refuses " + shown(shape) + ": " + e.what());
    }
    return entries_.emplace(key, std::move(entry)).first->second;
  }
  bool fits(const Entry& entry, const GraphShape& shape, std::size_t scratch_bytes) {
    if (!entry.graph) return false;
    if (entry.scratch_bytes <= scratch_bytes) return true;
    const std::lock_guard lock(mutex_);
    Entry& own = entries_.at(key_of(shape));
    if (!own.told) {
      log::warn("attention runs on slower kernels, cuDNN wants " + std::to_string(entry.scratch_bytes) +
                " bytes of scratch where " + std::to_string(scratch_bytes) +
                " are reserved: " + shown(shape));
    }
    own.told = true;
    return false;
  }
  void run(cudaStream_t stream, const Entry& entry, std::unordered_map<std::int64_t, void*>& data,
           void* scratch) {
    const std::lock_guard lock(mutex_);
    use(stream);
    require(entry.graph->execute(handle_, data, scratch), "cuDNN failed at attention");
  }

 private:
  void use(cudaStream_t stream) {
    if (handle_ == nullptr && fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS) {
      handle_ = nullptr;
      throw Error("cuDNN does not start");
    }
    if (fe::detail::set_stream(handle_, stream) != CUDNN_STATUS_SUCCESS) {
      throw Error("cuDNN does not take the stream");
    }
  }
  Entry build(cudaStream_t stream, const GraphShape& shape) {
    use(stream);
    Builder builder(shape);
    Entry entry{.graph = shape.backward ? builder.backward() : builder.forward()};
    require(entry.graph->validate(), "validating");
    require(entry.graph->build_operation_graph(handle_), "building the graph");
    require(entry.graph->create_execution_plans({fe::HeurMode_t::A}), "planning");
    require(entry.graph->check_support(), "finding an engine");
    require(entry.graph->build_plans(), "building an engine");
    std::int64_t bytes = 0;
    require(entry.graph->get_workspace_size(bytes), "asking for scratch");
    entry.scratch_bytes = static_cast<std::size_t>(bytes);
    return entry;
  }

  std::mutex mutex_;
  cudnnHandle_t handle_ = nullptr;
  std::map<Key, Entry> entries_;
};

Graphs& graphs_of(int device) {
  // Never destroyed: the driver may be gone when static objects are destroyed.
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::map<int, std::unique_ptr<Graphs>>;
  const std::lock_guard lock(mutex);
  auto& graphs = all[device];
  if (!graphs) graphs = std::make_unique<Graphs>();
  return *graphs;
}

}  // namespace

std::optional<std::size_t> graph_scratch(cudaStream_t stream, int device, const GraphShape& shape) {
  if (!load_cudnn()) return std::nullopt;
  const Entry& entry = graphs_of(device).find(stream, shape);
  if (!entry.graph) return std::nullopt;
  return entry.scratch_bytes;
}

bool graph_exists(cudaStream_t stream, int device, const GraphShape& shape, std::size_t scratch_bytes) {
  if (!load_cudnn()) return false;
  Graphs& graphs = graphs_of(device);
  return graphs.fits(graphs.find(stream, shape), shape, scratch_bytes);
}

void run_graph(cudaStream_t stream, int device, const GraphShape& shape, const GraphData& data) {
  Graphs& graphs = graphs_of(device);
  const auto changed = [](const void* p) { return const_cast<void*>(p); };
  std::unordered_map<std::int64_t, void*> pointers = {
      {uid_q, changed(data.q)}, {uid_k, changed(data.k)}, {uid_v, changed(data.v)}, {uid_out, data.out}};
  if (shape.stats) pointers[uid_stats] = data.stats;
  if (shape.backward) {
    pointers[uid_d_out] = changed(data.d_out);
    pointers[uid_d_q] = data.d_q;
    pointers[uid_d_k] = data.d_k;
    pointers[uid_d_v] = data.d_v;
  }
  if (shape.packed) {
    pointers[uid_lengths] = pointers[uid_lengths_kv] = data.lengths;
    pointers[uid_qkv_offsets] = data.qkv_offsets;
    pointers[uid_out_offsets] = data.out_offsets;
    if (shape.stats) pointers[uid_stats_offsets] = data.stats_offsets;
    if (shape.backward) {
      pointers[uid_d_out_offsets] = data.d_out_offsets;
      pointers[uid_d_q_offsets] = data.d_q_offsets;
      pointers[uid_d_kv_offsets] = data.d_kv_offsets;
    }
  }
  graphs.run(stream, graphs.find(stream, shape), pointers, data.scratch);
}

}  // namespace octet::ops::cuda

#else

namespace octet::ops::cuda {

std::optional<std::size_t> graph_scratch(cudaStream_t, int, const GraphShape&) {
  return std::nullopt;
}

bool graph_exists(cudaStream_t, int, const GraphShape&, std::size_t) {
  return false;
}

void run_graph(cudaStream_t, int, const GraphShape&, const GraphData&) {
  check(false, "attention: this build has no cuDNN");
}

}  // namespace octet::ops::cuda

#endif
