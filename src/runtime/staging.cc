#include "octet/runtime/staging.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "octet/base/error.h"

namespace octet::runtime {

std::int64_t HostBatch::labels() const {
  return std::ranges::count_if(targets, [](std::int32_t target) { return target >= 0; });
}

// The finisher of splitmix64 (Steele, Lea and Flood 2014), which is one to one in b.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ 0x9E3779B97F4A7C15ull) * 0xD1B54A32D192ED03ull + b;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

void add_document(HostBatch& batch, std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                  std::optional<std::uint64_t> sample) {
  if (batch.cu_seqlens.empty()) batch.cu_seqlens.push_back(0);
  const std::uint64_t name = sample.value_or(batch.cu_seqlens.size());
  const auto base = static_cast<std::int32_t>(batch.ids.size());
  for (std::size_t t = 0; t < ids.size(); ++t) {
    batch.ids.push_back(ids[t]);
    batch.positions.push_back(static_cast<std::int32_t>(t));
    batch.names.push_back(mixed(name, t));
    if (t + 1 < ids.size() && labels[t + 1] >= 0) {
      batch.label_rows.push_back(base + static_cast<std::int32_t>(t));
      batch.targets.push_back(labels[t + 1]);
    }
  }
  batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.ids.size()));
  batch.max_length = std::max(batch.max_length, static_cast<std::int64_t>(ids.size()));
}

void add_scored_document(HostBatch& batch, std::span<const std::int32_t> ids,
                         std::optional<std::uint64_t> sample) {
  add_document(batch, ids, std::vector<std::int32_t>(ids.size(), -100), sample);
  batch.label_rows.push_back(static_cast<std::int32_t>(batch.ids.size()) - 1);
  batch.targets.push_back(0);  // not read: a row has one score
}

namespace {

/// Fills a batch up to a multiple of `unit` tokens by a document without labels. Its tokens change no loss
/// and no gradient; an FP8 scale may see them.
HostBatch filled_up(HostBatch batch, std::int64_t unit) {
  const auto missing = static_cast<std::size_t>((unit - batch.tokens() % unit) % unit);
  batch.ids.insert(batch.ids.end(), missing, 0);
  batch.positions.insert(batch.positions.end(), missing, 0);
  batch.names.insert(batch.names.end(), missing, 0);
  batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.ids.size()));
  batch.max_length = std::max(batch.max_length, static_cast<std::int64_t>(missing));
  return batch;
}

/// Returns the number of values in the whole blocks of an arena that hold `count` of them.
template <typename T>
std::size_t aligned(std::size_t count) {
  constexpr std::size_t kBlock = 256 / sizeof(T);
  return (count + kBlock - 1) / kBlock * kBlock;
}

}  // namespace

Staging::Staging(Arena& arena, const StagingOptions& options)
    : device_(arena.device()),
      options_(options),
      sets_(static_cast<std::size_t>(std::max(1, options.host_sets))) {
  const auto tokens = static_cast<std::size_t>(options.tokens);
  const auto labels = options.labels > 0 ? static_cast<std::size_t>(options.labels) : tokens;
  const auto documents = static_cast<std::size_t>(options.documents);
  ids_ = arena.reserve_as<std::int32_t>("batch/ids", tokens);
  positions_ = arena.reserve_as<std::int32_t>("batch/positions", tokens);
  label_rows_ = arena.reserve_as<std::int32_t>("batch/label_rows", labels);
  targets_ = arena.reserve_as<std::int32_t>("batch/targets", labels);
  cu_seqlens_ = arena.reserve_as<std::int32_t>("batch/cu_seqlens", documents + 1);
  if (options.routed.blocks > 0)
    experts_ = arena.reserve_as<std::int32_t>("batch/experts", tokens * options.routed.each_token());
  if (options.names) names_ = arena.reserve_as<std::uint64_t>("batch/names", tokens);
  losses_ = options.losses ? sets_ : 1;
  loss_sum_ = arena.reserve_as<double>("batch/loss_sum", losses_);
  words_of_set_ = aligned<std::int32_t>(2 * tokens + 2 * labels + documents + 1);
  host_words_ = arena.reserve_as<std::int32_t>("batch/words", sets_ * words_of_set_, MemoryKind::pinned);
  names_of_set_ = aligned<std::uint64_t>(options.names ? tokens : 0);
  host_names_ = arena.reserve_as<std::uint64_t>("batch/names", sets_ * names_of_set_, MemoryKind::pinned);
  if (options.routed.blocks > 0) {
    experts_of_set_ = aligned<std::int32_t>(tokens * options.routed.each_token());
    host_experts_ =
        arena.reserve_as<std::int32_t>("batch/experts", sets_ * experts_of_set_, MemoryKind::pinned);
  }
  host_losses_ = arena.reserve_as<double>("batch/loss_sum", losses_, MemoryKind::pinned);
  if (options.teacher_ranks > 0) {
    const std::size_t listed = labels * static_cast<std::size_t>(options.teacher_ranks);
    teacher_ids_ = arena.reserve_as<std::int32_t>("batch/teacher", listed);
    teacher_logprobs_ = arena.reserve_as<float>("batch/teacher", listed);
    teacher_rest_ = arena.reserve_as<float>("batch/teacher", labels);
    taught_of_set_ = aligned<std::int32_t>(2 * listed + labels);
    host_taught_ =
        arena.reserve_as<std::int32_t>("batch/teacher", sets_ * taught_of_set_, MemoryKind::pinned);
  }
  if (!options.pairs && !options.judged && !options.hits && options.teacher_ranks == 0) return;
  constexpr std::size_t figures = ops::kPreferenceFigures + 1;
  figures_ = arena.reserve_as<double>("batch/figures", figures);
  host_figures_ = arena.reserve_as<double>("batch/figures", figures, MemoryKind::pinned);
  hits_ = figures_ + ops::kPreferenceFigures;
  if (!options.pairs && !options.judged) return;
  answers_ = arena.reserve_as<std::int32_t>("batch/answers", documents + 1);
  references_ = arena.reserve_as<double>("batch/references", documents);
  answers_of_set_ = aligned<std::int32_t>(documents + 1);
  references_of_set_ = aligned<double>(documents);
  host_answers_ =
      arena.reserve_as<std::int32_t>("batch/answers", sets_ * answers_of_set_, MemoryKind::pinned);
  host_references_ =
      arena.reserve_as<double>("batch/references", sets_ * references_of_set_, MemoryKind::pinned);
  if (!options.judged) return;
  desirable_ = arena.reserve_as<std::int32_t>("batch/answers", documents);
  host_desirable_ =
      arena.reserve_as<std::int32_t>("batch/answers", sets_ * answers_of_set_, MemoryKind::pinned);
  scores_ = arena.reserve_as<double>("batch/scores", documents);
  host_scores_ = arena.reserve_as<double>("batch/scores", documents, MemoryKind::pinned);
  point_ = arena.reserve_as<double>("batch/reference point", 1);
  host_point_ = arena.reserve_as<double>("batch/reference point", 1, MemoryKind::pinned);
}

void Staging::check_batch(const HostBatch& batch) const {
  check(batch.tokens() <= options_.tokens, "a micro-batch fits the buffers planned for it");
  check(batch.documents() <= options_.documents, "a micro-batch has no more documents than planned");
  check(batch.max_length <= options_.length, "a document is no longer than planned");
  const auto vocabulary = static_cast<std::uint32_t>(options_.vocabulary);
  const auto outside = [vocabulary](std::int32_t id) { return static_cast<std::uint32_t>(id) >= vocabulary; };
  const auto no_target = [outside](std::int32_t id) { return id >= 0 && outside(id); };
  for (const auto* ids : {&batch.ids, &batch.targets}) {
    const auto bad =
        ids == &batch.ids ? std::ranges::find_if(*ids, outside) : std::ranges::find_if(*ids, no_target);
    if (bad != ids->end()) {
      throw Error({.what = "a token id is outside the model's vocabulary",
                   .expected = "ids below " + std::to_string(vocabulary),
                   .found = std::to_string(*bad),
                   .fix = "use the tokenizer that belongs to the model",
                   .code = ExitCode::usage});
    }
  }
}

model::MicroBatch Staging::upload(Stream& stream, const HostBatch& batch, std::size_t host_set) {
  if (batch.tokens() % options_.token_unit == 0) return send(stream, batch, host_set);
  return send(stream, filled_up(batch, options_.token_unit), host_set);
}

model::MicroBatch Staging::send(Stream& stream, const HostBatch& batch, std::size_t host_set) {
  check_batch(batch);
  check(host_set < sets_, "the index of the host set is below the planned number");
  if (host_set >= cu_seqlens_of_.size()) cu_seqlens_of_.resize(host_set + 1);
  std::int32_t* host = host_words_ + host_set * words_of_set_;
  const auto copy = [&](std::int32_t* to, const std::vector<std::int32_t>& from) {
    std::memcpy(host, from.data(), from.size() * sizeof(std::int32_t));
    device_.copy_to_device(stream, to, host, from.size() * sizeof(std::int32_t));
    host += from.size();
  };
  copy(ids_, batch.ids);
  copy(positions_, batch.positions);
  copy(label_rows_, batch.label_rows);
  copy(targets_, batch.targets);
  copy(cu_seqlens_, batch.cu_seqlens);
  cu_seqlens_of_[host_set] = batch.cu_seqlens;
  if (names_ != nullptr) send_names(stream, batch, host_names_ + host_set * names_of_set_);
  model::MicroBatch m;
  m.ids = ids_, m.positions = positions_;
  m.label_rows = label_rows_, m.targets = targets_;
  m.names = names_;
  if (!batch.experts.empty()) m.experts = send_experts(stream, batch, host_set);
  if (options_.pairs || options_.judged) send_answers(stream, batch, host_set);
  if (options_.pairs)
    m.pairs = {.count = batch.pairs, .answers = answers_, .references = references_, .figures = figures_};
  if (options_.judged) m.judged = send_judged(stream, batch, host_set);
  if (options_.teacher_ranks > 0) m.taught = send_taught(stream, batch, host_set);
  m.labels = static_cast<std::int64_t>(batch.targets.size());
  m.documents = {.cu_seqlens = cu_seqlens_,
                 .host_cu_seqlens = cu_seqlens_of_[host_set].data(),
                 .count = batch.documents(),
                 .max_length = batch.max_length,
                 .tokens = batch.tokens()};
  return m;
}

void Staging::send_names(Stream& stream, const HostBatch& batch, std::uint64_t* host) {
  check(batch.names.size() == batch.ids.size(), "every token has a name");
  for (std::size_t t = 0; t < batch.names.size(); ++t) host[t] = mixed(noise_, batch.names[t]);
  device_.copy_to_device(stream, names_, host, batch.names.size() * sizeof(std::uint64_t));
}

// Tokens that fill a batch up choose experts themselves.
const std::int32_t* Staging::send_experts(Stream& stream, const HostBatch& batch, std::size_t host_set) {
  const auto taken = static_cast<std::size_t>(options_.routed.taken);
  const auto blocks = static_cast<std::size_t>(options_.routed.blocks);
  check(blocks > 0 && batch.experts.size() % (blocks * taken) == 0,
        "there is room for the experts of tokens");
  const std::size_t given = batch.experts.size() / blocks, each = batch.ids.size() * taken;
  check(given <= each, "experts are given for tokens of the batch");
  std::int32_t* const host = host_experts_ + host_set * experts_of_set_;
  for (std::size_t block = 0; block < blocks; ++block) {
    std::int32_t* const to = host + block * each;
    std::copy_n(batch.experts.data() + block * given, given, to);
    std::fill(to + given, to + each, -1);
  }
  device_.copy_to_device(stream, experts_, host, blocks * each * sizeof(std::int32_t));
  return experts_;
}

// A document that fills a batch up is no answer.
void Staging::send_answers(Stream& stream, const HostBatch& batch, std::size_t host_set) {
  const auto count = static_cast<std::size_t>(batch.answers());
  check(batch.documents() >= batch.answers(), "every answer has a document");
  check(batch.references.empty() || batch.references.size() == count, "every answer has a reference");
  std::int32_t* const answers = host_answers_ + host_set * answers_of_set_;
  for (std::size_t a = 0; a <= count; ++a) {
    const std::int32_t token = batch.cu_seqlens.empty() ? 0 : batch.cu_seqlens[a];
    answers[a] = static_cast<std::int32_t>(std::ranges::lower_bound(batch.label_rows, token) -
                                           batch.label_rows.begin());
  }
  device_.copy_to_device(stream, answers_, answers, (count + 1) * sizeof(std::int32_t));
  if (!batch.references.empty()) {
    double* const references = host_references_ + host_set * references_of_set_;
    std::ranges::copy(batch.references, references);
    device_.copy_to_device(stream, references_, references, count * sizeof(double));
  }
}

model::Judged Staging::send_judged(Stream& stream, const HostBatch& batch, std::size_t host_set) {
  check(static_cast<std::int64_t>(batch.desirable.size()) == batch.judged, "every answer has a judgement");
  std::int32_t* const desirable = host_desirable_ + host_set * answers_of_set_;
  std::ranges::copy(batch.desirable, desirable);
  device_.copy_to_device(stream, desirable_, desirable, batch.desirable.size() * sizeof(std::int32_t));
  return {.count = batch.judged,
          .answers = answers_,
          .desirable = desirable_,
          .references = references_,
          .point = point_,
          .figures = figures_};
}

model::Taught Staging::send_taught(Stream& stream, const HostBatch& batch, std::size_t host_set) {
  const std::size_t labels = batch.targets.size();
  const std::size_t listed = labels * static_cast<std::size_t>(options_.teacher_ranks);
  check(batch.teacher_ids.size() == listed && batch.teacher_logprobs.size() == listed &&
            batch.teacher_rest.size() == labels,
        "the teacher lists tokens for every label row");
  std::int32_t* host = host_taught_ + host_set * taught_of_set_;
  const auto copy = [&](void* to, const auto& from) {
    const std::size_t bytes = from.size() * sizeof(std::int32_t);
    if (bytes == 0) return;
    std::memcpy(host, from.data(), bytes);
    device_.copy_to_device(stream, to, host, bytes);
    host += from.size();
  };
  copy(teacher_ids_, batch.teacher_ids);
  copy(teacher_logprobs_, batch.teacher_logprobs);
  copy(teacher_rest_, batch.teacher_rest);
  return {.ids = teacher_ids_, .logprobs = teacher_logprobs_, .rest = teacher_rest_, .figures = figures_};
}

void Staging::fetch_references(Stream& stream, std::int64_t answers) {
  check(references_ != nullptr, "references are of answers");
  device_.copy_to_host(stream, host_references_, references_,
                       static_cast<std::size_t>(answers) * sizeof(double));
}

void Staging::fetch_scores(Stream& stream, std::int64_t answers) {
  check(scores_ != nullptr, "scores are of judged answers");
  device_.copy_to_host(stream, host_scores_, scores_, static_cast<std::size_t>(answers) * sizeof(double));
}

void Staging::set_point(Stream& stream, double point) {
  check(point_ != nullptr, "judged answers have a reference point");
  *host_point_ = point;
  device_.copy_to_device(stream, point_, host_point_, sizeof(double));
}

void Staging::clear_figures(Stream& stream) {
  if (figures_ != nullptr) device_.zero(stream, figures_, (ops::kPreferenceFigures + 1) * sizeof(double));
}

void Staging::fetch_figures(Stream& stream) {
  if (figures_ == nullptr) return;
  device_.copy_to_host(stream, host_figures_, figures_, (ops::kPreferenceFigures + 1) * sizeof(double));
}

void Staging::clear_losses(Stream& stream, std::size_t count) {
  device_.zero(stream, loss_sum_, count * sizeof(double));
}

void Staging::fetch_losses(Stream& stream, std::size_t count) {
  device_.copy_to_host(stream, host_losses_, loss_sum_, count * sizeof(double));
}

}  // namespace octet::runtime
