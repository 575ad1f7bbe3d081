// The experts that a mixture chose for the tokens of its answers: a file of JSON lines. `trainer generate
// --save-routing` writes it, and training reads it (moe_routing_file).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "octet/base/files.h"
#include "octet/data/encoded.h"
#include "octet/runtime/routers.h"
#include "octet/runtime/staging.h"

namespace octet::feed {

/// Returns the first line of a file, without its end.
std::string routing_head(const runtime::Routers& routers);
/// Returns the line of an answer, without its end. `ids`: the tokens of the question and the answer.
/// `experts`: [tokens, blocks, experts per token] of the first of these tokens, in descending order of their
/// weights. The last token of an answer may have none, because sampling does not compute it.
std::string routing_line(std::span<const std::int32_t> ids, std::span<const std::uint16_t> experts);

/// A file of experts. It is mapped, and a row is read when a micro-batch needs it.
class RoutingFile {
 public:
  /// Tokens that a document may have after the tokens of its row: the end of a template.
  static constexpr std::int64_t kMostAfter = 8;

  /// Throws Error (usage) that names `path` if it is no such file, or if its routers are not `routers`.
  RoutingFile(const std::string& path, const runtime::Routers& routers);

  /// Throws Error (usage) for the first document without a row.
  void require(const data::Encoded& set) const;
  /// Sets the experts of a batch. Tokens after the end of a row have none. Throws Error (usage) for a
  /// document without a row, and for a damaged row.
  void add_to(runtime::HostBatch& batch) const;

 private:
  struct Row {
    std::size_t begin = 0, size = 0;  ///< its line in the file
    std::int64_t number = 0;          ///< of the line, from 1
    std::size_t tokens = 0;
  };
  /// Returns the longest row that the document begins with.
  const Row* find(std::span<const std::int32_t> ids) const;
  const Row& at(std::span<const std::int32_t> ids, std::int64_t row) const;
  void take(const Row& row, std::span<const std::int32_t> ids, std::size_t first,
            runtime::HostBatch& batch) const;
  [[noreturn]] void refuse(std::int64_t line, const std::string& found) const;

  MappedFile file_;
  runtime::Routers routers_;
  std::unordered_map<std::uint64_t, Row> rows_;  ///< by a hash of their tokens
};

}  // namespace octet::feed
