#include "layers/mlp/exchanged_rows.h"

#include <algorithm>
#include <numeric>

#include "octet/base/error.h"
#include "octet/base/index.h"
#include "octet/device/profile.h"
#include "octet/ops/embedding.h"

namespace octet::model {
namespace {

ops::Matrix column(float* values, std::int64_t rows) {
  return {.data = values, .dtype = DType::f32, .rows = rows, .cols = 1, .ld = 1};
}
ops::ConstMatrix column(const float* values, std::int64_t rows) {
  return {values, DType::f32, rows, 1, 1};
}

}  // namespace

void ExchangedRows::reserve(BlockBuffers& buffers, std::int64_t max_tokens) {
  const std::int64_t ranks = exchange_.size(), experts = shape_.count / ranks;
  const std::int64_t most = ranks * std::min(shape_.taken, experts);  // per token
  check(max_tokens * most < std::int64_t{1} << 31, "rows of experts have numbers of 31 bits");
  const auto rows = [&](std::int64_t factor) {
    ops::Matrix m = buffers.matrix("activations/exchanged rows", factor * hidden_, Kept::never);
    return ops::Matrix{
        .data = m.data, .dtype = m.dtype, .rows = m.rows * factor, .cols = hidden_, .ld = hidden_};
  };
  own_ = rows(shape_.taken);
  arrived_ = rows(most);
  const auto floats = [&](std::int64_t factor) {
    return buffers.floats("activations/exchanged weights", factor, Kept::never);
  };
  own_weights_ = floats(shape_.taken);
  arrived_weights_ = floats(most);
  gradients_ = floats(most);
  arrived_gradients_ = floats(most);
  const auto numbers = [&](std::int64_t bytes) {
    return static_cast<std::int32_t*>(
        buffers.take("activations/exchanged row numbers", index(bytes), Kept::activations));
  };
  constexpr std::int64_t kNumber = sizeof(std::int32_t);
  begins_ = numbers((experts + 1) * kNumber);
  order_ = numbers(max_tokens * most * kNumber);
  places_ = numbers(max_tokens * most * kNumber);
  host_begins_.resize(index(experts + 1));
  host_order_.reserve(index(max_tokens * most));
  host_places_.reserve(index(max_tokens * most));
  sent_.resize(index(ranks));
  received_.resize(index(ranks));
}

std::int64_t ExchangedRows::sent_rows() const {
  return std::accumulate(sent_.begin(), sent_.end(), std::int64_t{0});
}

void ExchangedRows::agree(const Call& call, std::span<const std::int32_t> begins) {
  const std::int64_t ranks = exchange_.size(), count = shape_.count, experts = count / ranks;
  std::vector<std::int32_t> own(index(count));
  for (std::size_t e = 0; e < own.size(); ++e) own[e] = begins[e + 1] - begins[e];
  const std::vector<std::int32_t> all = exchange_.gather(own);
  const auto rows_of = [&](std::int64_t source, std::int64_t expert) {
    return all[index(source * count + exchange_.rank() * experts + expert)];
  };
  std::int32_t arrived = 0;  // rows of earlier ranks, and of earlier experts of a rank
  std::vector<std::int32_t> first(index(ranks * experts));
  for (std::int64_t r = 0; r < ranks; ++r) {
    sent_[index(r)] = begins[index((r + 1) * experts)] - begins[index(r * experts)];
    const std::int32_t before = arrived;
    for (std::int64_t e = 0; e < experts; ++e) {
      first[index(r * experts + e)] = arrived;
      arrived += rows_of(r, e);
    }
    received_[index(r)] = arrived - before;
  }
  count_ = arrived;
  host_order_.resize(index(count_));
  host_places_.resize(index(count_));
  std::int32_t row = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    host_begins_[index(e)] = row;
    for (std::int64_t r = 0; r < ranks; ++r) {
      for (std::int32_t i = 0; i < rows_of(r, e); ++i, ++row) {
        const std::int32_t from = first[index(r * experts + e)] + i;
        host_order_[index(row)] = from;
        host_places_[index(from)] = row;
      }
    }
  }
  host_begins_.back() = row;
  const auto upload = [&](std::int32_t* to, const std::vector<std::int32_t>& from) {
    call.stream.device().copy_to_device(call.stream, to, from.data(), from.size() * sizeof(std::int32_t));
  };
  upload(begins_, host_begins_);
  upload(order_, host_order_);
  upload(places_, host_places_);
}

void ExchangedRows::out(const Call& call, const char* name, const void* from, void* to,
                        std::size_t row_bytes) {
  const ProfileLabel label(call.stream, "exchange of tokens");
  exchange_.exchange(call.stream, name,
                     {.from = from, .sent = sent_, .to = to, .received = received_, .row_bytes = row_bytes});
}

void ExchangedRows::back(const Call& call, const char* name, const void* from, void* to,
                         std::size_t row_bytes) {
  const ProfileLabel label(call.stream, "exchange of tokens");
  exchange_.exchange(call.stream, name,
                     {.from = from, .sent = received_, .to = to, .received = sent_, .row_bytes = row_bytes});
}

ops::Matrix ExchangedRows::send(const Call& call, const char* name, const ops::Matrix& tokens,
                                const std::int32_t* row_tokens) {
  const ops::Matrix own = top(own_, sent_rows());
  if (own.rows > 0) ops::gather_rows(call.stream, tokens, row_tokens, own);
  out(call, name, own.data, arrived_.data, index(hidden_) * size_of(own.dtype));
  return top(arrived_, count_);
}

ops::Matrix ExchangedRows::give_back(const Call& call, const char* name, const ops::Matrix& values) {
  if (count_ > 0) ops::gather_rows(call.stream, values, places_, top(arrived_, count_));
  back(call, name, arrived_.data, own_.data, index(hidden_) * size_of(own_.dtype));
  return top(own_, sent_rows());
}

RowWeights ExchangedRows::send_weights(const Call& call, const RowWeights& own) {
  // With rows that were dropped, the first of these are sent.
  const std::int64_t rows = call.tokens * own.taken;
  if (rows > 0)
    ops::scatter_rows(call.stream, column(own.weights, rows), own.places, column(own_weights_, rows));
  out(call, "weights for experts", own_weights_, arrived_weights_, sizeof(float));
  return {.taken = 1, .places = places_, .weights = arrived_weights_, .gradients = gradients_};
}

void ExchangedRows::give_back_gradients(const Call& call, float* gradients) {
  if (count_ > 0)
    ops::gather_rows(call.stream, column(static_cast<const float*>(gradients_), count_), places_,
                     column(arrived_gradients_, count_));
  back(call, "gradients of weights", arrived_gradients_, gradients, sizeof(float));
}

}  // namespace octet::model
