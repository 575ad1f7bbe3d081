// Forward of the gated delta rule, see delta_chunk.h. A task is a document and some value heads of a key
// head. It goes through the chunks in order and keeps a state per head.
#include <algorithm>
#include <cstring>

#include "cpu/attention_tiles.h"
#include "cpu/delta_chunk.h"
#include "cpu/rows.h"
#include "cpu/tile_gemm.h"
#include "kernels.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {

std::size_t delta_rule_workspace(const DeltaHeads& heads);

namespace {

/// One thread's scratch memory.
struct ForwardRoom {
  ForwardRoom(void* memory, const DeltaSizes& sizes)
      : room(memory),
        keys(room, sizes),
        decays(room),
        x(room.take(kDeltaChunk * sizes.values)),
        u(room.take(kDeltaChunk * sizes.values)),
        out(room.take(kDeltaChunk * sizes.values)),
        states(room.take(sizes.group * sizes.keys * sizes.values)) {}
  DeltaScratchRoom room;
  DeltaKeys keys;
  DeltaDecays decays;
  float *x, *u, *out;  ///< [rows][values]
  float* states;       ///< of each value head of the task, [keys][values]
};

template <typename T>
OCTET_SIMD void round_rows(const float* from, std::int64_t from_ld, std::int64_t rows, std::int64_t dim,
                           T* to, std::int64_t to_ld) {
  for (std::int64_t i = 0; i < rows; ++i) store(from + i * from_ld, to + i * to_ld, dim);
}

struct ForwardTask {
  std::int64_t document, head, last_head;  ///< value heads [head, last_head), which have one key head
};

template <typename T>
class DeltaForward {
 public:
  DeltaForward(const DeltaRuleArgs& args, const ForwardTask& task, void* memory)
      : args_(args), task_(task), sizes_(args.heads), room_(memory, sizes_) {}

  void run() {
    const std::int64_t start = args_.documents.cu_seqlens[task_.document],
                       end = args_.documents.cu_seqlens[task_.document + 1];
    for (std::int64_t first = start; first < end; first += kDeltaChunk) {
      const std::int64_t count = std::min(kDeltaChunk, end - first);
      const DeltaTokens tokens{.first = first, .count = count, .rows = round_up(count, 16)};
      load_delta_keys<T>(args_.qkv, args_.heads, task_.head / sizes_.group, tokens, room_.keys);
      for (std::int64_t head = task_.head; head < task_.last_head; ++head) {
        float* state = room_.states + (head - task_.head) * sizes_.keys * sizes_.values;
        const bool begins = first == start, ends = first + kDeltaChunk >= end;
        // States are numbered by tokens, see delta_states().
        if (!begins) keep(state, start / kDeltaChunk + (first - start) / kDeltaChunk - 1, head);
        run_chunk(tokens, head, begins ? nullptr : state, ends ? nullptr : state);
      }
    }
  }

 private:
  void keep(const float* state, std::int64_t number, std::int64_t head) {
    if (args_.states == nullptr) return;
    round_rows(state, sizes_.values, sizes_.key_dim, sizes_.value_dim,
               delta_state_at(static_cast<T*>(args_.states), args_.heads, number, head), sizes_.value_dim);
  }

  /// rows [rows][keys] times a state.
  TileGemm times_state(const float* rows, const float* state, std::int64_t count, float* to) const {
    return {.a = rows,
            .a_row = sizes_.keys,
            .a_col = 1,
            .b = state,
            .ldb = sizes_.values,
            .c = to,
            .ldc = sizes_.values,
            .m = count,
            .n = sizes_.values,
            .k = sizes_.key_dim};
  }

  /// `before`: the state before the chunk; null: zero. `after`: the state to update; null: not wanted.
  void run_chunk(const DeltaTokens& tokens, std::int64_t head, const float* before, float* after) {
    const std::int64_t values = sizes_.values, rows = tokens.rows;
    load_delta_decays(args_.log_decay, args_.beta, args_.heads, head, tokens, room_.keys, room_.decays);
    const T* v = row_of<T>(args_.qkv, tokens.first) + 2 * args_.heads.keys() + head * sizes_.value_dim;
    pack_rows(v, args_.qkv.ld, tokens.count, sizes_.value_dim, room_.x, values, rows);
    if (before != nullptr) {
      tile_gemm(times_state(room_.keys.k, before, rows, room_.out));
      add_delta_rows(room_.decays.from_start, -1.0f, room_.out, rows, values, room_.x);
      tile_gemm(times_state(room_.keys.q, before, rows, room_.out));
      scale_delta_rows(room_.decays.from_start, 1.0f, rows, values, room_.out);
    } else {
      std::fill(room_.out, room_.out + rows * values, 0.0f);
    }
    solve_delta_values(room_.decays, rows, values, room_.x, room_.u);
    add_lower(room_.decays.weights, room_.u, rows, values, room_.out);
    round_rows(room_.out, values, tokens.count, sizes_.value_dim,
               row_of<T>(args_.out, tokens.first) + head * sizes_.value_dim, args_.out.ld);
    if (after != nullptr) update(after, before != nullptr, rows);
  }

  /// state = exp(G_last) state + Σ_j exp(G_last - G_j) k_j u_jᵀ
  void update(float* state, bool add, std::int64_t rows) {
    const std::int64_t values = sizes_.values;
    if (add) {
      for (std::int64_t r = 0; r < sizes_.keys; ++r) {
        scale_delta_rows(&room_.decays.whole, 1.0f, 1, values, state + r * values);
      }
    }
    scale_delta_rows(room_.decays.to_end, 1.0f, rows, values, room_.u);
    tile_gemm({.a = room_.keys.k,
               .a_row = 1,
               .a_col = sizes_.keys,
               .b = room_.u,
               .ldb = values,
               .c = state,
               .ldc = values,
               .m = sizes_.keys,
               .n = values,
               .k = rows,
               .accumulate = add});
  }

  const DeltaRuleArgs& args_;
  const ForwardTask& task_;
  DeltaSizes sizes_;
  ForwardRoom room_;
};

template <typename T>
void run_forward(const DeltaRuleArgs& args) {
  const std::int64_t key_heads = args.heads.key_heads, group = args.heads.value_heads / key_heads;
  const std::size_t each = delta_forward_bytes(args.heads);
  const int most = delta_threads(args.workspace, each);
  // A task has all value heads of a key head, unless threads would be idle.
  const std::int64_t parts = args.documents.count * key_heads < 4 * most ? group : 1;
  const std::int64_t tasks = args.documents.count * key_heads * parts;
  const int threads = static_cast<int>(std::min<std::int64_t>(tasks, most));
  auto* memory = static_cast<std::uint8_t*>(args.workspace.data);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (std::int64_t index = 0; index < tasks; ++index) {
    const std::int64_t part = index % parts, key_head = index / parts % key_heads;
    const ForwardTask task{.document = index / parts / key_heads,
                           .head = key_head * group + group * part / parts,
                           .last_head = key_head * group + group * (part + 1) / parts};
    DeltaForward<T>(args, task, memory + each * static_cast<std::size_t>(omp_get_thread_num())).run();
  }
  for (std::int64_t t = end_of_documents(args.documents); t < args.qkv.rows; ++t) {
    std::memset(row_of<T>(args.out, t), 0, static_cast<std::size_t>(args.out.cols) * sizeof(T));
  }
}

}  // namespace

std::size_t delta_forward_bytes(const DeltaHeads& heads) {
  return ForwardRoom(nullptr, DeltaSizes(heads)).room.bytes();
}

std::size_t delta_rule_workspace(const DeltaHeads& heads) {
  return std::max(delta_forward_bytes(heads), delta_backward_bytes(heads)) *
         static_cast<std::size_t>(octet::cpu::op_threads());
}

void delta_rule(const DeltaRuleArgs& args) {
  check_delta_documents(args.documents);
  return args.qkv.dtype == DType::f32 ? run_forward<float>(args) : run_forward<Bf16>(args);
}

}  // namespace octet::ops::cpu
