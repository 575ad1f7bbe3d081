#include "vocabulary_pieces.h"

#include <algorithm>
#include <cmath>

namespace octet::generate {

ops::BestToken best_of_pieces(std::span<const ops::BestToken> pieces, std::span<const std::int64_t> begins,
                              bool normalizers) {
  std::size_t best = 0;
  double highest = pieces.front().normalizer;
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    const float logit = pieces[i].logit, before = pieces[best].logit;
    if (!std::isnan(before) && (std::isnan(logit) || logit > before)) best = i;
    highest = std::max(highest, pieces[i].normalizer);
  }
  ops::BestToken all{.logit = pieces[best].logit,
                     .id = static_cast<std::int32_t>(pieces[best].id + begins[best])};
  if (!normalizers) return all;
  double sum = 0;
  for (const ops::BestToken& piece : pieces) sum += std::exp(piece.normalizer - highest);
  all.normalizer = highest + std::log(sum);
  return all;
}

VocabularyPieces::VocabularyPieces(comm::Collectives& tensor, const model::Architecture& architecture,
                                   Device& device)
    : tensor_(tensor),
      device_(device),
      ready_(device.make_event()),
      came_(device.make_event()),
      sent_(device.make_event()) {
  model::Architecture of_rank = architecture;
  for (of_rank.share.tensor_rank = 0; of_rank.share.tensor_rank < tensor.size();
       ++of_rank.share.tensor_rank) {
    pieces_.push_back(model::vocabulary_of_share(of_rank));
    begins_.push_back(pieces_.back().begin);
  }
}

void VocabularyPieces::reserve(Arena& arena, std::int64_t rows) {
  if (tensor_.rank() != 0) return;
  for (std::size_t r = 1; r < pieces_.size(); ++r) {
    logits_.push_back(arena.reserve_as<float>("decode/logits of other ranks",
                                              static_cast<std::size_t>(rows * pieces_[r].count)));
    best_.push_back(arena.reserve_as<ops::BestToken>("decode/best tokens", static_cast<std::size_t>(rows)));
  }
}

void VocabularyPieces::bring(Stream& compute, const char* name, const void* own, std::span<void* const> to,
                             std::span<const std::int64_t> bytes) {
  Stream& stream = tensor_.gather_stream();
  compute.record(*ready_);
  stream.wait(*ready_);
  if (tensor_.rank() != 0) {
    tensor_.send(
        stream,
        {.name = name, .to = 0, .from = own, .bytes = bytes[static_cast<std::size_t>(tensor_.rank())]});
    stream.record(*sent_);
    return;
  }
  for (int r = 1; r < tensor_.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    tensor_.receive(stream, {.name = name, .from = r, .to = to[i - 1], .bytes = bytes[i]});
  }
  stream.record(*came_);
  compute.wait(*came_);
}

void VocabularyPieces::gather_best(Stream& compute, const ops::BestToken* own, ops::BestToken* host,
                                   std::int64_t rows) {
  const std::size_t bytes = static_cast<std::size_t>(rows) * sizeof(ops::BestToken);
  const std::vector<void*> to(best_.begin(), best_.end());
  bring(compute, "best tokens", own, to,
        std::vector<std::int64_t>(pieces_.size(), static_cast<std::int64_t>(bytes)));
  if (tensor_.rank() != 0) return;
  device_.copy_to_host(compute, host, own, bytes);
  for (std::size_t r = 0; r < best_.size(); ++r)
    device_.copy_to_host(compute, host + static_cast<std::int64_t>(r + 1) * rows, best_[r], bytes);
}

void VocabularyPieces::gather_logits(Stream& compute, const float* own, float* host,
                                     const std::vector<bool>& wanted) {
  const auto rows = std::ssize(wanted);
  std::vector<std::int64_t> bytes;
  for (const model::Piece& piece : pieces_)
    bytes.push_back(rows * piece.count * static_cast<std::int64_t>(sizeof(float)));
  const std::vector<void*> to(logits_.begin(), logits_.end());
  bring(compute, "logits", own, to, bytes);
  if (tensor_.rank() != 0) return;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (!wanted[static_cast<std::size_t>(row)]) continue;
    for (std::size_t r = 0; r < pieces_.size(); ++r) {
      const model::Piece& piece = pieces_[r];
      const float* from = r == 0 ? own : logits_[r - 1];
      device_.copy_to_host(compute, host + row * piece.of + piece.begin, from + row * piece.count,
                           static_cast<std::size_t>(piece.count) * sizeof(float));
    }
  }
}

}  // namespace octet::generate
