#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layers/linear.h"

namespace octet::model {

/// The weights of rows of experts, and room for their gradients.
struct RowWeights {
  std::int64_t taken = 1;
  const std::int32_t* places = nullptr;  ///< [rows], as of ops::deal()
  const float* weights = nullptr;        ///< [rows], in the order of `places`
  float* gradients = nullptr;            ///< [rows], in the order of rows
};

/// The rows that the ranks of an expert group send to the ranks of their experts (expert parallelism;
/// Lepikhin et al. 2020, arXiv:2006.16668). It sends all rows of ops::deal(), and buffers are reserved for
/// the case that all ranks send all their rows to one rank. A rank computes the rows that it received, in the
/// order of its experts, then of the sending ranks, then of their tokens.
class ExchangedRows {
 public:
  ExchangedRows(TokenExchange& exchange, const ExpertShape& shape, std::int64_t hidden)
      : exchange_(exchange), shape_(shape), hidden_(hidden) {}

  void reserve(BlockBuffers& buffers, std::int64_t max_tokens);
  /// Exchanges the numbers of rows, for all later calls of the micro-batch. `begins`: the first row of each
  /// expert of all ranks, [count + 1], for this rank's tokens. Requires that earlier work is done.
  void agree(const Call& call, std::span<const std::int32_t> begins);
  /// Returns the number of rows that this rank computes.
  std::int64_t count() const { return count_; }
  /// Returns the rows by expert of this rank, as indices of what send() returns.
  ExpertRows rows() const { return {.begins = begins_, .tokens = order_, .on_host = host_begins_}; }

  /// Sends values of this rank's tokens, [tokens, hidden]. `row_tokens`: the tokens of its rows. Returns the
  /// values that this rank received, [count(), hidden], valid until the next call.
  ops::Matrix send(const Call& call, const char* name, const ops::Matrix& tokens,
                   const std::int32_t* row_tokens);
  /// Sends values in the order of rows() back. Returns the values of this rank's rows, in the order of all
  /// experts, valid until the next call.
  ops::Matrix give_back(const Call& call, const char* name, const ops::Matrix& values);
  /// Sends the weights of this rank's rows. Returns the weights of the rows that it computes, valid until the
  /// next agree().
  RowWeights send_weights(const Call& call, const RowWeights& own);
  /// Sends the gradients of these weights back. `gradients`: for this rank's rows.
  void give_back_gradients(const Call& call, float* gradients);

 private:
  std::int64_t sent_rows() const;
  void out(const Call& call, const char* name, const void* from, void* to, std::size_t row_bytes);
  void back(const Call& call, const char* name, const void* from, void* to, std::size_t row_bytes);

  TokenExchange& exchange_;
  ExpertShape shape_;
  std::int64_t hidden_;
  ops::Matrix own_;      ///< [tokens * taken, hidden]: rows of this rank's tokens
  ops::Matrix arrived_;  ///< [most, hidden]: rows as received, by rank, then by expert
  float *own_weights_ = nullptr, *arrived_weights_ = nullptr;
  float *gradients_ = nullptr, *arrived_gradients_ = nullptr;
  std::int32_t* begins_ = nullptr;  ///< [experts of this rank + 1]
  std::int32_t* order_ = nullptr;   ///< [most] received rows, by expert
  std::int32_t* places_ = nullptr;  ///< [most] the inverse
  std::int64_t count_ = 0;
  std::vector<std::int64_t> sent_, received_;  ///< by rank
  std::vector<std::int32_t> host_begins_, host_order_, host_places_;
};

}  // namespace octet::model
