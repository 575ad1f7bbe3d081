#include "layers/mlp/exchanged_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>

#include "octet/base/error.h"
#include "octet/base/index.h"
#include "octet/device/profile.h"
#include "octet/model/work.h"
#include "octet/ops/embedding.h"
#include "octet/ops/wire.h"

namespace octet::model {
namespace {

ops::Matrix column(float* values, std::int64_t rows) {
  return {.data = values, .dtype = DType::f32, .rows = rows, .cols = 1, .ld = 1};
}
ops::ConstMatrix column(const float* values, std::int64_t rows) {
  return {values, DType::f32, rows, 1, 1};
}

/// Bytes of an encoded message beyond the bytes of its values: one more factor, and the boundary.
constexpr std::int64_t kMessageRest = 32;

}  // namespace

void ExchangedRows::reserve(BlockBuffers& buffers, const TransformerOptions& options, bool names) {
  const std::int64_t ranks = exchange_.size(), experts = shape_.count / ranks;
  room_ = {.taken = shape_.taken, .experts = experts, .sources = ranks};
  even_ = options.max_tokens * shape_.taken;
  limit_ = room_.limit(options);
  const std::int64_t own = even_, most = room_.rows(options);
  check(most < std::int64_t{1} << 31, "rows of experts have numbers of 31 bits");
  // With room for every case, each part must fill its share of the rows.
  const bool aligned = most < room_.worst(options) || most / ranks % ExpertRoom::kPartRows == 0;
  part_rows_ = by_source_ && aligned ? ExpertRoom::kPartRows : 1;
  own_ = buffers.rows("activations/exchanged rows", own, hidden_, Kept::never);
  arrived_ = buffers.rows("activations/exchanged rows", most, hidden_, Kept::never);
  wire_ = ops::wire_of_values(wire_, own_.dtype);
  encodes_ = !ops::travels_as_it_lies(wire_, own_.dtype);
  if (encodes_) {
    // Each message may have a block and a boundary of its own.
    const auto bytes_for = [&](std::int64_t rows) {
      return index(exchanged_bytes(rows * hidden_, own_.dtype, wire_) + ranks * kMessageRest);
    };
    own_wire_bytes_ = bytes_for(own);
    wire_room_ = static_cast<std::byte*>(
        buffers.take("activations/exchanged rows", own_wire_bytes_ + bytes_for(most), Kept::never));
  }
  const auto floats = [&](std::int64_t count) {
    return buffers.array<float>("activations/exchanged weights", count, Kept::never);
  };
  own_weights_ = floats(own);
  arrived_weights_ = floats(most);
  gradients_ = floats(most);
  arrived_gradients_ = floats(most);
  const auto numbers = [&](std::int64_t count) {
    return buffers.array<std::int32_t>("activations/exchanged row numbers", count, Kept::activations);
  };
  const std::int64_t parts = by_source_ ? ranks : 1;
  begins_ = numbers(parts * (experts + 1));
  order_ = numbers(most);
  places_ = numbers(most);
  if (names) {
    own_names_ = buffers.array<std::uint64_t>("activations/exchanged names", own, Kept::never);
    arrived_names_ = buffers.array<std::uint64_t>("activations/exchanged names", most, Kept::activations);
  }
  parts_.resize(index(parts));
  host_begins_.resize(index(parts * (experts + 1)));
  host_order_.reserve(index(most));
  host_places_.reserve(index(most));
  sent_.resize(index(ranks));
  received_.resize(index(ranks));
}

std::int64_t ExchangedRows::sent_rows() const {
  return std::accumulate(sent_.begin(), sent_.end(), std::int64_t{0});
}

std::int64_t ExchangedRows::received_rows() const {
  return std::accumulate(received_.begin(), received_.end(), std::int64_t{0});
}

void ExchangedRows::agree(const Call& call, std::span<const std::int32_t> begins) {
  const std::int64_t ranks = exchange_.size(), count = shape_.count, experts = count / ranks;
  std::vector<std::int32_t> own(index(count));
  for (std::size_t e = 0; e < own.size(); ++e) own[e] = begins[e + 1] - begins[e];
  const std::vector<std::int32_t> all = exchange_.gather(own);
  require_room(all);
  std::vector<std::int32_t> counts;  // by rank, then by expert of this rank
  for (std::int64_t r = 0; r < ranks; ++r) {
    sent_[index(r)] = begins[index((r + 1) * experts)] - begins[index(r * experts)];
    const auto first = all.begin() + (r * count + exchange_.rank() * experts);
    counts.insert(counts.end(), first, first + experts);
    received_[index(r)] = std::accumulate(first, first + experts, std::int64_t{0});
  }
  set_parts(counts);
  const auto upload = [&](std::int32_t* to, const std::vector<std::int32_t>& from) {
    call.stream.device().copy_to_device(call.stream, to, from.data(), from.size() * sizeof(std::int32_t));
  };
  upload(begins_, host_begins_);
  upload(order_, host_order_);
  upload(places_, host_places_);
}

// All ranks of the group have the same numbers, so they throw together.
void ExchangedRows::require_room(std::span<const std::int32_t> counts) const {
  const std::int64_t ranks = exchange_.size(), experts = shape_.count / ranks;
  std::int64_t most = 0;
  for (std::int64_t r = 0; r < ranks; ++r) {
    std::int64_t rows = 0;
    for (std::int64_t source = 0; source < ranks; ++source) {
      const auto first = counts.begin() + (source * shape_.count + r * experts);
      rows = std::accumulate(first, first + experts, rows);
    }
    most = std::max(most, rows);
  }
  if (most <= limit_) return;
  const auto factor = [&](double rows) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", std::ceil(100 * rows / static_cast<double>(even_)) / 100);
    return std::string(text);
  };
  exchange_.together([&] {
    if (exchange_.rank() != 0) return;
    throw Error({.what = "a rank gets more rows of experts in a micro-batch than it has room for",
                 .expected = "at most " + std::to_string(limit_) + " rows",
                 .found = std::to_string(most) + " rows, " + factor(static_cast<double>(most)) +
                          " times an even share",
                 .where = "exchange_rows_factor",
                 .fix = "set exchange_rows_factor: " + factor(1.1 * static_cast<double>(most)) +
                        ", or null for every case",
                 .code = ExitCode::usage});
  });
}

// Rows arrive by rank, then by expert, also inside a part.
void ExchangedRows::set_parts(std::span<const std::int32_t> counts) {
  const std::int64_t ranks = exchange_.size(), experts = shape_.count / ranks;
  const std::int64_t sources = by_source_ ? 1 : ranks;  // of a part
  host_order_.clear();
  host_places_.assign(index(received_rows()), 0);
  std::int64_t received = 0;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const auto of_part = counts.subspan(p * index(sources * experts), index(sources * experts));
    Part& part = parts_[p];
    part = {.begin = (std::ssize(host_order_) + part_rows_ - 1) / part_rows_ * part_rows_,
            .count = std::accumulate(of_part.begin(), of_part.end(), std::int64_t{0}),
            .received = received};
    host_order_.resize(index(part.begin));
    const std::span begins(host_begins_.data() + p * index(experts + 1), index(experts + 1));
    std::int32_t row = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      begins[index(e)] = row;
      std::int32_t first = std::accumulate(of_part.begin(), of_part.begin() + e, 0);
      for (std::int64_t r = 0; r < sources; ++r) {
        for (std::int32_t i = 0; i < of_part[index(r * experts + e)]; ++i, ++row) {
          host_order_.push_back(first + i);
          host_places_[index(received + first + i)] = row;
        }
        const auto next = of_part.begin() + (r * experts + e);
        if (r + 1 < sources) first = std::accumulate(next, next + experts, first);
      }
    }
    begins.back() = row;
    part.rows = {
        .begins = begins_ + p * index(experts + 1), .tokens = order_ + part.begin, .on_host = begins};
    received += part.count;
  }
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

template <typename Act>
std::vector<std::int64_t> ExchangedRows::each_message(const Side& side, Act&& act) const {
  std::vector<std::int64_t> bytes;
  std::byte* message = side.messages;
  std::int64_t row = 0;
  for (const std::int64_t count : side.rows) {
    bytes.push_back(count == 0 ? 0 : exchanged_bytes(count * hidden_, side.values.dtype, wire_));
    if (count > 0) act(rows_from(side.values, row, count).data, count * hidden_, message);
    row += count;
    message += bytes.back();
  }
  return bytes;
}

void ExchangedRows::start(const Call& call, const char* name, bool away) {
  const ProfileLabel label(call.stream, "exchange of tokens");
  const Side from = away ? own_side() : arrived_side(), to = away ? arrived_side() : own_side();
  if (!encodes_) {
    return exchange_.start(call.stream, name,
                           {.from = from.values.data,
                            .sent = from.rows,
                            .to = to.values.data,
                            .received = to.rows,
                            .row_bytes = index(hidden_) * size_of(own_.dtype)});
  }
  const std::vector<std::int64_t> sent =
      each_message(from, [&](const void* values, std::int64_t count, std::byte* message) {
        ops::encode_values(
            call.stream, {.wire = wire_, .from = values, .dtype = own_.dtype, .count = count, .to = message});
      });
  const std::vector<std::int64_t> received = each_message(to, [](auto&&...) {});
  exchange_.start(
      call.stream, name,
      {.from = from.messages, .sent = sent, .to = to.messages, .received = received, .row_bytes = 1});
}

void ExchangedRows::finish(const Call& call, bool away) {
  const ProfileLabel label(call.stream, "exchange of tokens");
  exchange_.finish(call.stream);
  if (!encodes_) return;
  each_message(
      away ? arrived_side() : own_side(), [&](void* values, std::int64_t count, const std::byte* message) {
        ops::decode_values(
            call.stream, {.wire = wire_, .part = message, .count = count, .dtype = own_.dtype, .to = values});
      });
}

void ExchangedRows::start_sending(const Call& call, const char* name, const ops::Matrix& tokens,
                                  const std::int32_t* row_tokens) {
  const ops::Matrix own = top(own_, sent_rows());
  if (own.rows > 0) ops::gather_rows(call.stream, tokens, row_tokens, own);
  start(call, name, true);
}

ops::Matrix ExchangedRows::received(const Call& call) {
  finish(call, true);
  return top(arrived_, received_rows());
}

ops::Matrix ExchangedRows::give_back(const Call& call, const char* name, const ops::Matrix& values) {
  for (const Part& part : parts_) {
    if (part.count == 0) continue;
    ops::gather_rows(call.stream, rows_from(values, part.begin, part.count), places_ + part.received,
                     rows_from(arrived_, part.received, part.count));
  }
  start(call, name, false);
  finish(call, false);
  return top(own_, sent_rows());
}

void ExchangedRows::send_weights(const Call& call, const RowWeights& own) {
  // With rows that were dropped, the first of these are sent.
  const std::int64_t rows = call.tokens * own.taken;
  if (rows > 0)
    ops::scatter_rows(call.stream, column(own.weights, rows), own.places, column(own_weights_, rows));
  out(call, "weights for experts", own_weights_, arrived_weights_, sizeof(float));
}

RowWeights ExchangedRows::weights_of(const Part& part) const {
  return {.taken = 1,
          .places = places_ + part.received,
          .weights = arrived_weights_ + part.received,
          .gradients = gradients_ + part.begin};
}

void ExchangedRows::give_back_gradients(const Call& call, float* gradients) {
  for (const Part& part : parts_) {
    if (part.count == 0) continue;
    ops::gather_rows(call.stream, column(static_cast<const float*>(gradients_ + part.begin), part.count),
                     places_ + part.received, column(arrived_gradients_ + part.received, part.count));
  }
  back(call, "gradients of weights", arrived_gradients_, gradients, sizeof(float));
}

void ExchangedRows::send_names(const Call& call, const std::int32_t* row_tokens) {
  // A name is copied as two words.
  const std::int64_t rows = sent_rows();
  if (rows > 0)
    ops::gather_rows(call.stream, ops::ConstMatrix(call.names, DType::f32, call.tokens, 2, 2), row_tokens,
                     {.data = own_names_, .dtype = DType::f32, .rows = rows, .cols = 2, .ld = 2});
  out(call, "names of tokens", own_names_, arrived_names_, sizeof(std::uint64_t));
}

}  // namespace octet::model
