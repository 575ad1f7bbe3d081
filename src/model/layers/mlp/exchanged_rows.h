#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layers/linear.h"
#include "octet/ops/wire.h"

namespace octet::model {

/// The weights of rows of experts, and room for their gradients.
struct RowWeights {
  std::int64_t taken = 1;
  const std::int32_t* places = nullptr;  ///< [rows], as of ops::deal()
  const float* weights = nullptr;        ///< [rows], in the order of `places`
  float* gradients = nullptr;            ///< [rows], in the order of rows
};

/// Sends rows to the ranks of their experts (expert parallelism; Lepikhin et al. 2020, arXiv:2006.16668).
/// Sends all rows of ops::deal(). Buffers have room for ExpertRoom::rows() rows. A rank computes the rows
/// that it received in parts. All rows are one part, in the order of the rank's experts, then of the sending
/// ranks, then of their tokens. With `by_source`, the rows of each sending rank are a part, in the order of a
/// rank with all experts. Results then have the same bits at every size of the group.
class ExchangedRows {
 public:
  /// Hidden values are sent in the format `wire`.
  ExchangedRows(TokenExchange& exchange, const ExpertShape& shape, std::int64_t hidden, bool by_source,
                ops::Wire wire)
      : exchange_(exchange), shape_(shape), hidden_(hidden), by_source_(by_source), wire_(wire) {}

  /// `names`: send_names() is called.
  void reserve(BlockBuffers& buffers, const TransformerOptions& options, bool names);
  /// Exchanges the numbers of rows, for all later calls of the micro-batch. `begins`: the first row of each
  /// expert of all ranks, [count + 1], for this rank's tokens. Requires that earlier work is done. Throws
  /// Error on all ranks of the group if a rank gets more rows than it has room for.
  void agree(const Call& call, std::span<const std::int32_t> begins);

  /// Rows that are computed together.
  struct Part {
    std::int64_t begin = 0;     ///< the first of them among the rows that this rank computes
    std::int64_t count = 0;     ///< the next part begins after these rows, or at a multiple of kPartRows
    std::int64_t received = 0;  ///< the first of them among the received rows
    ExpertRows rows = {};       ///< by expert of this rank, as indices of the received rows of the part
  };
  const std::vector<Part>& parts() const { return parts_; }

  /// Starts to send values of this rank's tokens, [tokens, hidden]. `row_tokens`: the tokens of its rows.
  /// Work that is enqueued before received() overlaps with the messages. It must not make other calls of this
  /// object.
  void start_sending(const Call& call, const char* name, const ops::Matrix& tokens,
                     const std::int32_t* row_tokens);
  /// Waits for the messages. Returns the values that this rank received, valid until the next call.
  ops::Matrix received(const Call& call);
  /// Sends values in the order of the rows that this rank computes back. Returns the values of this rank's
  /// rows, in the order of all experts, valid until the next call.
  ops::Matrix give_back(const Call& call, const char* name, const ops::Matrix& values);
  /// Sends the weights of this rank's rows. weights_of() then returns the weights of a part, valid until the
  /// next agree(). Their places are rows of the part.
  void send_weights(const Call& call, const RowWeights& own);
  RowWeights weights_of(const Part& part) const;
  /// Sends the gradients of these weights back. `gradients`: for this rank's rows.
  void give_back_gradients(const Call& call, float* gradients);
  /// Sends the names of this rank's tokens (Call::names). names() returns the names of the received rows,
  /// valid until the next agree().
  void send_names(const Call& call, const std::int32_t* row_tokens);
  const std::uint64_t* names() const { return arrived_names_; }

 private:
  std::int64_t sent_rows() const;
  std::int64_t received_rows() const;
  void require_room(std::span<const std::int32_t> counts) const;
  void set_parts(std::span<const std::int32_t> counts);
  /// Starts to send the hidden values of own_ (`away`) or of arrived_, encoded if the wire requires it.
  void start(const Call& call, const char* name, bool away);
  /// Waits for the values, and decodes them.
  void finish(const Call& call, bool away);
  /// The messages of one direction: values, their rows by rank, and the memory of encoded values.
  struct Side {
    ops::Matrix values;
    std::span<const std::int64_t> rows;
    std::byte* messages = nullptr;
  };
  Side own_side() const { return {own_, sent_, wire_room_}; }
  Side arrived_side() const { return {arrived_, received_, wire_room_ + own_wire_bytes_}; }
  /// Calls act(values, count, message) for each rank with rows, and returns the bytes of all messages.
  template <typename Act>
  std::vector<std::int64_t> each_message(const Side& side, Act&& act) const;
  void out(const Call& call, const char* name, const void* from, void* to, std::size_t row_bytes);
  void back(const Call& call, const char* name, const void* from, void* to, std::size_t row_bytes);

  TokenExchange& exchange_;
  ExpertShape shape_;
  std::int64_t hidden_;
  bool by_source_;
  ops::Wire wire_;
  bool encodes_ = false;
  std::byte* wire_room_ = nullptr;  ///< encoded rows of this rank, then rows as received
  std::size_t own_wire_bytes_ = 0;
  ExpertRoom room_;
  std::int64_t even_ = 0, limit_ = 0;  ///< rows of a micro-batch: an even share of the largest, and at most
  std::int64_t part_rows_ = 1;         ///< parts begin at multiples of this number of rows
  ops::Matrix own_;                    ///< [tokens * taken, hidden]: rows of this rank's tokens
  ops::Matrix arrived_;                ///< [most, hidden]: rows as received, by rank, then by expert
  float *own_weights_ = nullptr, *arrived_weights_ = nullptr;
  float *gradients_ = nullptr, *arrived_gradients_ = nullptr;
  std::uint64_t *own_names_ = nullptr, *arrived_names_ = nullptr;
  std::int32_t* begins_ = nullptr;  ///< [parts, experts of this rank + 1]
  std::int32_t* order_ = nullptr;   ///< [most] received rows, by part, then by expert
  std::int32_t* places_ = nullptr;  ///< [most] the inverse, by part
  std::vector<Part> parts_;
  std::vector<std::int64_t> sent_, received_;  ///< by rank
  std::vector<std::int32_t> host_begins_, host_order_, host_places_;
};

}  // namespace octet::model
