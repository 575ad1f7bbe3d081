#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace octet::runtime {

/// A micro-batch in host memory: concatenated documents without padding.
struct HostBatch {
  std::vector<std::int32_t> ids;         ///< [tokens]
  std::vector<std::int32_t> positions;   ///< [tokens], from 0 in every document
  std::vector<std::int32_t> cu_seqlens;  ///< [documents + 1]
  std::vector<std::int32_t> label_rows;  ///< rows with a trained next token, ascending
  std::vector<std::int32_t> targets;     ///< [label_rows]: that next token
  /// [tokens]: a number of the sample and of the position in it, by which noise knows a token.
  std::vector<std::uint64_t> names;
  /// [blocks with experts, tokens, experts per token]: MicroBatch::experts; empty: routers choose.
  std::vector<std::int32_t> experts;
  std::vector<std::int64_t> rows;  ///< of the data set: of each document that a loader added
  std::int64_t items = 0;          ///< samples
  std::int64_t max_length = 0;     ///< of a document
  std::int64_t tokens() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t documents() const { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
  /// Targets that count.
  std::int64_t labels() const;
};

/// Adds a document to a batch. The last token of a document predicts nothing, and a token is a target only
/// where its own label says so: labels are shifted inside the document. `sample`: a number that the document
/// has in whatever batch it comes; without one it has its place in this batch.
void add_document(HostBatch& batch, std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                  std::optional<std::uint64_t> sample = {});

/// One number of two, every bit of it from all of theirs.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b);

}  // namespace octet::runtime
