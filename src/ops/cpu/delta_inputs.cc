#include <algorithm>
#include <cstring>

#include "cpu/activations.h"
#include "cpu/cached_runs.h"
#include "cpu/delta_chunk.h"
#include "cpu/delta_conv.h"
#include "cpu/rows.h"
#include "delta_gate_rule.h"
#include "kernels.h"

namespace octet::ops::cpu {

std::vector<ConvPiece> conv_pieces(const DeltaColumns& columns) {
  std::vector<ConvPiece> pieces;
  const auto add = [&pieces](std::int64_t channel, std::int64_t column, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += kConvPiece) {
      pieces.push_back({channel + i, column + i, std::min(kConvPiece, count - i)});
    }
  };
  const DeltaHeads& heads = columns.heads;
  const std::int64_t keys = columns.key_heads(), values = columns.value_heads();
  for (std::int64_t run = 0; run < columns.groups; ++run) {
    add(run * keys * heads.key_dim, columns.query(run * keys), keys * heads.key_dim);
    add(heads.keys() + run * keys * heads.key_dim, columns.key(run * keys), keys * heads.key_dim);
    add(2 * heads.keys() + run * values * heads.value_dim, columns.value(run * values),
        values * heads.value_dim);
  }
  return pieces;
}

std::int64_t document_of(const Documents& documents, std::int64_t token) {
  const std::int32_t* ends = documents.cu_seqlens + 1;
  return documents.count > 0 ? std::upper_bound(ends, ends + documents.count, token) - ends : 0;
}

namespace {

/// Channels of a piece for tokens [first, last) of the document that starts at `start`.
template <typename T>
OCTET_SIMD void convolve(const DeltaInputsArgs& a, const ConvPiece& piece, std::int64_t start,
                         std::int64_t first, std::int64_t last) {
  const ConvTaps taps(a.taps, piece);
  for (std::int64_t t = first; t < last; ++t) {
    float sum[kConvPiece] = {};
    const std::int64_t oldest = std::min(kDeltaTaps - 1, t - start);
    for (std::int64_t s = oldest; s >= 0; --s) {
      add_tap(taps.ago[s], row_of<T>(a.projected, t - s) + piece.column, piece.count, sum);
    }
    T* to = row_of<T>(a.qkv, t) + piece.channel;
    for (std::int64_t i = 0; i < piece.count; ++i) simd::store(to[i], Silu::value(sum[i]));
  }
}

/// beta and log_decay of a token.
template <typename T, typename Args>
void gates_of(const Args& a, std::int64_t t) {
  const T* row = row_of<T>(a.projected, t);
  for (std::int64_t h = 0; h < a.columns.heads.value_heads; ++h) {
    const std::int64_t at = t * a.columns.heads.value_heads + h;
    const float b = simd::load(row[a.columns.b(h)]), gate = simd::load(row[a.columns.a(h)]);
    a.beta[at] = static_cast<float>(delta_sigmoid(static_cast<double>(b)));
    a.log_decay[at] = static_cast<float>(delta_decay(a.a_log[h], gate, a.dt_bias[h]));
  }
}

template <typename T>
void inputs_of_tokens(const DeltaInputsArgs& a, const std::vector<ConvPiece>& pieces, std::int64_t first,
                      std::int64_t last) {
  const Documents& documents = a.documents;
  const std::int64_t value_heads = a.columns.heads.value_heads;
  std::int64_t document = document_of(documents, first);
  while (first < last) {
    if (document == documents.count) {
      for (std::int64_t t = first; t < last; ++t) {
        std::memset(row_of<T>(a.qkv, t), 0, static_cast<std::size_t>(a.qkv.cols) * sizeof(T));
      }
      for (float* gates : {a.log_decay, a.beta}) {
        std::fill(gates + first * value_heads, gates + last * value_heads, 0.0f);
      }
      return;
    }
    const std::int64_t end = std::min<std::int64_t>(last, documents.cu_seqlens[document + 1]);
    for (const ConvPiece& piece : pieces) {
      convolve<T>(a, piece, documents.cu_seqlens[document], first, end);
    }
    for (std::int64_t t = first; t < end; ++t) gates_of<T>(a, t);
    first = end;
    ++document;
  }
}

/// Channels of a piece for the tokens of a sequence. The order of sums is as in convolve().
template <typename T>
OCTET_SIMD void convolve_cached(const CachedDeltaInputsArgs& a, const ConvPiece& piece, const TokenRun& run) {
  const ConvTaps taps(a.taps, piece);
  const std::int64_t width = a.columns.heads.qkv_width(), before = a.positions[run.first];
  float* past = a.past + a.slots[run.first] * (kDeltaTaps - 1) * width + piece.channel;
  for (std::int64_t i = 0; i < run.count; ++i) {
    float sum[kConvPiece] = {};
    const std::int64_t oldest = std::min(kDeltaTaps - 1, before + i);
    for (std::int64_t s = oldest; s >= 0; --s) {
      if (s > i) {
        add_tap(taps.ago[s], past + (before + i - s) % (kDeltaTaps - 1) * width, piece.count, sum);
      } else {
        add_tap(taps.ago[s], row_of<T>(a.projected, run.first + i - s) + piece.column, piece.count, sum);
      }
    }
    T* to = row_of<T>(a.qkv, run.first + i) + piece.channel;
    for (std::int64_t c = 0; c < piece.count; ++c) simd::store(to[c], Silu::value(sum[c]));
  }
  for (std::int64_t i = std::max<std::int64_t>(0, run.count - (kDeltaTaps - 1)); i < run.count; ++i) {
    load(row_of<T>(a.projected, run.first + i) + piece.column, past + (before + i) % (kDeltaTaps - 1) * width,
         piece.count);
  }
}

template <typename T>
void run_cached_inputs(const CachedDeltaInputsArgs& a) {
  const TokenRuns tokens = token_runs(a.slots, a.positions, a.projected.rows);
  const std::vector<ConvPiece> pieces = conv_pieces(a.columns);
  const std::int64_t count = std::ssize(pieces), sequences = std::ssize(tokens.runs);
  simd::parallel_rows(sequences * count, 16 * kConvPiece * a.projected.rows / sequences,
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t i = begin; i < end; ++i) {
                          convolve_cached<T>(a, pieces[static_cast<std::size_t>(i % count)],
                                             tokens.runs[static_cast<std::size_t>(i / count)]);
                        }
                      });
  const std::int64_t value_heads = a.columns.heads.value_heads;
  for (std::int64_t t = 0; t < a.projected.rows; ++t) gates_of<T>(a, t);
  for (const std::int64_t copy : tokens.copies) {
    std::memcpy(row_of<T>(a.qkv, copy), row_of<T>(a.qkv, 0),
                static_cast<std::size_t>(a.qkv.cols) * sizeof(T));
    for (float* gates : {a.log_decay, a.beta}) {
      std::copy(gates, gates + value_heads, gates + copy * value_heads);
    }
  }
}

}  // namespace

void delta_inputs(const DeltaInputsArgs& a) {
  check_delta_documents(a.documents);
  const std::vector<ConvPiece> pieces = conv_pieces(a.columns);
  with_type(a.projected.dtype, [&](auto type) {
    simd::parallel_rows(a.projected.rows, 16 * a.qkv.cols, [&](std::int64_t begin, std::int64_t end) {
      inputs_of_tokens<decltype(type)>(a, pieces, begin, end);
    });
  });
}

void cached_delta_inputs(const CachedDeltaInputsArgs& a) {
  with_type(a.projected.dtype, [&](auto type) { run_cached_inputs<decltype(type)>(a); });
}

}  // namespace octet::ops::cpu
