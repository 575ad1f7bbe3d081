#include "pass_runner.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "octet/base/error.h"
#include "octet/device/device.h"
#include "octet/ops/elementwise.h"

namespace octet::generate {

StandingParameters::StandingParameters(model::ParameterSource& source)
    : source_(source), groups_(source.layout().groups.size()) {}

void StandingParameters::forget(Stream& compute) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i] != nullptr) source_.release(static_cast<int>(i), model::Pass::forward, compute);
    groups_[i] = nullptr;
  }
}

const model::GroupParameters& StandingParameters::acquire(int group, model::Pass pass, Stream& compute) {
  const model::GroupParameters*& held = groups_[static_cast<std::size_t>(group)];
  if (held == nullptr) held = &source_.acquire(group, pass, compute);
  return *held;
}

const model::GroupGradients& StandingParameters::gradients(int group, Stream& compute) {
  check(false, "parameters that stay on the device are not trained");
  return source_.gradients(group, compute);
}

void StandingParameters::give_back(int, Stream&) {
  check(false, "parameters that stay on the device are not trained");
}

namespace {

template <typename T>
void put(std::string& bytes, const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::uint64_t count = values.size();
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  bytes.append(reinterpret_cast<const char*>(values.data()), count * sizeof(T));
}

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  template <typename T>
  std::vector<T> take() {
    std::uint64_t count = 0;
    copy(&count, sizeof count);
    if (count > (bytes_.size() - at_) / sizeof(T)) fail();
    std::vector<T> values(count);
    copy(values.data(), count * sizeof(T));
    return values;
  }
  void end() const {
    if (at_ != bytes_.size()) fail();
  }

 private:
  void copy(void* to, std::size_t count) {
    if (count > bytes_.size() - at_) fail();
    if (count > 0) std::memcpy(to, bytes_.data() + at_, count);
    at_ += count;
  }
  [[noreturn]] void fail() const {
    throw Error({.what = "the plan of a pass cannot be read",
                 .found = std::to_string(bytes_.size()) + " bytes",
                 .fix = "start the same program on all hosts"});
  }

  const std::string& bytes_;
  std::size_t at_ = 0;
};

}  // namespace

std::string packed(const PassPlan& plan) {
  std::string bytes;
  put(bytes, plan.copies);
  put(bytes, plan.changes);
  put(bytes, plan.tokens.ids);
  put(bytes, plan.tokens.slots);
  put(bytes, plan.tokens.positions);
  put(bytes, plan.tokens.rows);
  put(bytes, std::vector<std::int64_t>{plan.tokens.alone, plan.wanted.best ? 1 : 0,
                                       plan.wanted.normalizers ? 1 : 0});
  put(bytes, std::vector<char>(plan.wanted.logits.begin(), plan.wanted.logits.end()));
  return bytes;
}

PassPlan unpacked(const std::string& bytes) {
  Reader reader(bytes);
  PassPlan plan;
  plan.copies = reader.take<PageCopy>();
  plan.changes = reader.take<PageChange>();
  plan.tokens.ids = reader.take<std::int32_t>();
  plan.tokens.slots = reader.take<std::int32_t>();
  plan.tokens.positions = reader.take<std::int32_t>();
  plan.tokens.rows = reader.take<std::int32_t>();
  const auto numbers = reader.take<std::int64_t>();
  const auto logits = reader.take<char>();
  reader.end();
  check(numbers.size() == 3, "a plan has exactly three numbers");
  plan.tokens.alone = numbers[0];
  plan.wanted = {.best = numbers[1] != 0,
                 .normalizers = numbers[2] != 0,
                 .listed = {},
                 .logits = {logits.begin(), logits.end()}};
  return plan;
}

std::int64_t RepeatedPasses::rounded(std::int64_t tokens) const {
  const auto up_to = [&](std::int64_t unit) { return (tokens + unit - 1) / unit * unit; };
  const std::int64_t unit = tokens <= 4 ? 1 : tokens <= 8 ? 2 : tokens <= 16 ? 4 : tokens <= 64 ? 8 : 32;
  return std::clamp(up_to(unit), tokens, std::max(tokens, most_));
}

bool RepeatedPasses::make(std::int64_t tokens, int kind, const std::function<void()>& enqueue) {
  const auto [found, first] = passes_.try_emplace({tokens, kind});
  Known& known = found->second;
  if (!first && !known.recording && !known.refused) {
    known.recording = record(*stream_, enqueue);
    known.refused = known.recording == nullptr;
  }
  known.recording ? known.recording->replay() : enqueue();
  return known.recording != nullptr;
}

std::int64_t most_tokens(const DecoderOptions& options) {
  return std::max({options.prefill, options.sequences, options.scored, options.score_rows});
}

std::int64_t logit_rows(const DecoderOptions& options) {
  return std::max(options.sequences, options.score_rows);
}

namespace {

/// Returns the largest number of tokens of recorded passes. A model in training may gather its parameters in
/// each pass, and the host waits for it. If experts are chosen, the host may read the choice. Hidden states
/// between stages, and sums that are not direct, are messages that need the host.
std::int64_t most_recorded(const RunnerParts& parts, const DecoderOptions& options) {
  const model::Architecture& a = options.architecture;
  if (!parts.own || a.share.stages > 1) return 0;
  const std::int64_t most =
      model::unwatched_tokens(parts.model.device(), a, options.recipe, options.strict, options.sequences);
  if (parts.sums == nullptr) return most;
  return std::min(most, parts.sums->direct_rows(a.hidden, options.recipe.compute));
}

}  // namespace

PassRunner::PassRunner(const RunnerParts& parts, const DecoderOptions& options, const model::KvLayout& layout,
                       std::int64_t pages)
    : parts_(parts),
      options_(options),
      cache_(parts.arena, options.architecture, layout, options.sequences, options.capacity, pages),
      repeated_(&parts.model.compute(), most_recorded(parts, options)) {
  if (parts.own) standing_ = std::make_unique<StandingParameters>(parts.model.store());
  const model::Share& share = options.architecture.share;
  if (share.stages > 1) edges_ = std::make_unique<StageEdges>(parts.team->pipeline(), share, device());
  if (share.sums() && share.last()) {
    pieces_ = std::make_unique<VocabularyPieces>(parts.team->tensor(), options.architecture, device());
  }
  reserve();
}

void PassRunner::reserve() {
  Arena& arena = parts_.arena;
  const auto words = static_cast<std::size_t>(3 * most_tokens(options_) + logit_rows(options_));
  words_ = arena.reserve_as<std::int32_t>("decode/words", words);
  for (Side& side : sides_) {
    side.words = arena.reserve_as<std::int32_t>("decode/words", words, MemoryKind::pinned);
    side.finished = device().make_event();
  }
  if (options_.keep_experts) {
    const auto experts = static_cast<std::size_t>(most_tokens(options_) * experts_of_token());
    experts_ = arena.reserve_as<std::int32_t>("decode/experts", experts);
    host_experts_ = arena.reserve_as<std::int32_t>("decode/experts", experts, MemoryKind::pinned);
  }
  const model::Architecture& a = options_.architecture;
  const DType dtype = options_.recipe.compute;
  if (parts_.sums != nullptr) parts_.sums->reserve(arena, most_tokens(options_), a.hidden, dtype);
  if (edges_) edges_->reserve(arena, most_tokens(options_), a.hidden, dtype);
  if (!has_head()) return;
  const auto rows = static_cast<std::size_t>(logit_rows(options_));
  const auto piece = static_cast<std::size_t>(model::vocabulary_of_share(a).count);
  logits_ = arena.reserve_as<float>("decode/logits", rows * piece);
  // Like in training, logits are rounded to the compute dtype.
  if (options_.strict && dtype != DType::f32)
    narrow_logits_ = arena.reserve("decode/logits", rows * piece * size_of(dtype));
  best_ = arena.reserve_as<ops::BestToken>("decode/best tokens", rows);
  if (pieces_) pieces_->reserve(arena, logit_rows(options_));
  if (!leads()) return;
  const auto ranks = static_cast<std::size_t>(a.share.tensor_size);
  host_logits_ = arena.reserve_as<float>("decode/logits", rows * static_cast<std::size_t>(a.vocabulary),
                                         MemoryKind::pinned);
  for (Side& side : sides_)
    side.best = arena.reserve_as<ops::BestToken>("decode/best tokens", ranks * rows, MemoryKind::pinned);
  reserve_listings();
}

// Strict answers are chosen on the host, like log-probabilities of training.
void PassRunner::reserve_listings() {
  if (pieces_ || options_.strict || options_.listed <= 0) return;
  Arena& arena = parts_.arena;
  most_listed_ = std::min(options_.listed, options_.architecture.vocabulary);
  const auto rows = static_cast<std::size_t>(options_.sequences);
  const std::size_t all = rows * static_cast<std::size_t>(most_listed_);
  listing_ = arena.reserve_as<double>("decode/listed logits", 2 * rows);
  host_listing_ = arena.reserve_as<double>("decode/listed logits", 2 * rows, MemoryKind::pinned);
  summaries_ = arena.reserve_as<ops::RowOfLogits>("decode/listed logits", rows);
  host_summaries_ = arena.reserve_as<ops::RowOfLogits>("decode/listed logits", rows, MemoryKind::pinned);
  largest_ = arena.reserve_as<ops::ListedLogit>("decode/listed logits", all);
  host_largest_ = arena.reserve_as<ops::ListedLogit>("decode/listed logits", all, MemoryKind::pinned);
}

void PassRunner::forget_parameters() {
  if (standing_) standing_->forget(compute());
}

model::DecodeBatch PassRunner::batch_of(const PassTokens& pass, bool repeated) {
  const auto tokens = std::ssize(pass.ids), rows = std::ssize(pass.rows);
  const std::int64_t made = repeated ? repeated_.rounded(tokens) : tokens;
  const std::int64_t made_rows = repeated ? made : rows;
  std::int32_t* const words = sides_[side_].words;
  model::DecodeBatch batch{
      .tokens = made, .alone = repeated ? made : pass.alone, .row_count = made_rows, .experts = experts_};
  std::int64_t at = 0;
  const auto lay_out = [&](const std::vector<std::int32_t>& from, std::int64_t count) {
    std::copy(from.begin(), from.end(), words + at);
    std::fill(words + at + std::ssize(from), words + at + count, from.empty() ? 0 : from.front());
    const std::int32_t* there = words_ + at;
    at += count;
    return there;
  };
  batch.ids = lay_out(pass.ids, made);
  // The embedding table of this rank begins at row `first` of the whole table.
  const auto first = static_cast<std::int32_t>(model::vocabulary_of_share(options_.architecture).begin);
  for (std::int64_t token = 0; first > 0 && token < made; ++token) words[token] -= first;
  batch.slots = lay_out(pass.slots, made);
  batch.positions = lay_out(pass.positions, made);
  batch.rows = lay_out(pass.rows, made_rows);
  return batch;
}

void PassRunner::enqueue(const model::DecodeBatch& batch, const Wanted& wanted) {
  const auto words = static_cast<std::size_t>(3 * batch.tokens + batch.row_count);
  device().copy_to_device(compute(), words_, sides_[side_].words, words * sizeof(std::int32_t));
  if (parts_.ahead) ops::fill_ids(compute(), {.best = best_, .ids = words_, .count = batch.tokens});
  const std::int64_t vocabulary = model::vocabulary_of_share(options_.architecture).count;
  const ops::Matrix logits{logits_, DType::f32, batch.row_count, vocabulary, vocabulary};
  model::ParameterSource& parameters =
      standing_ ? static_cast<model::ParameterSource&>(*standing_) : parts_.model.store();
  const ops::ConstMatrix in = edges_ ? edges_->receive(compute(), batch.tokens) : ops::ConstMatrix{};
  const ops::Matrix out = edges_ ? edges_->place(compute(), batch.tokens) : ops::Matrix{};
  if (narrow_logits_ != nullptr) {
    const DType narrow = options_.recipe.compute;
    const ops::Matrix made{narrow_logits_, narrow, batch.row_count, vocabulary, vocabulary};
    parts_.core.decode(parameters, compute(), batch, cache_, made, in, out);
    ops::convert(compute(), narrow_logits_, narrow, logits_, DType::f32, batch.row_count * vocabulary);
  } else {
    parts_.core.decode(parameters, compute(), batch, cache_, logits, in, out);
  }
  if (edges_) edges_->send(compute());
  if (experts_ != nullptr) {
    device().copy_to_host(compute(), host_experts_, experts_,
                          static_cast<std::size_t>(batch.tokens * experts_of_token()) * sizeof(std::int32_t));
  }
  if (!has_head() || batch.row_count == 0) return;
  if (wanted.best) choose_best(logits, wanted.normalizers);
  if (!wanted.listed.empty()) list_logits(logits, wanted.normalizers);
}

void PassRunner::choose_best(const ops::Matrix& logits, bool normalizers) {
  ops::best_tokens(compute(), {.logits = logits, .normalizers = normalizers, .out = best_});
  if (pieces_) return;  // gathered together with the results of the other ranks
  device().copy_to_host(compute(), sides_[side_].best, best_,
                        static_cast<std::size_t>(logits.rows) * sizeof(ops::BestToken));
}

std::vector<bool> PassRunner::lay_out_listing(const Wanted& wanted, std::int64_t rows) {
  std::vector<bool> listed(wanted.listed.size(), false);
  if (listed.empty()) return listed;
  check(most_listed_ > 0, "there is room for the listed rows");
  std::fill_n(host_listing_, rows, WantedOfRow{}.temperature);
  std::fill_n(host_listing_ + rows, rows, WantedOfRow{}.draw);
  for (std::size_t row = 0; row < listed.size(); ++row) {
    if (!wanted.listed[row]) continue;
    listed[row] = true;
    host_listing_[row] = wanted.listed[row]->temperature;
    host_listing_[static_cast<std::size_t>(rows) + row] = wanted.listed[row]->draw;
  }
  return listed;
}

void PassRunner::list_logits(const ops::Matrix& logits, bool normalizers) {
  const auto rows = static_cast<std::size_t>(logits.rows);
  device().copy_to_device(compute(), listing_, host_listing_, 2 * rows * sizeof(double));
  ops::listed_logits(compute(), {.logits = logits,
                                 .normalizers = normalizers,
                                 .temperatures = listing_,
                                 .draws = listing_ + rows,
                                 .most = most_listed_,
                                 .rows = summaries_,
                                 .listed = largest_});
  device().copy_to_host(compute(), host_summaries_, summaries_, rows * sizeof(ops::RowOfLogits));
  device().copy_to_host(compute(), host_largest_, largest_,
                        rows * static_cast<std::size_t>(most_listed_) * sizeof(ops::ListedLogit));
}

void PassRunner::fetch_row(std::size_t row) {
  check(most_listed_ > 0 && row < static_cast<std::size_t>(last_.rows), "a row of the last pass is fetched");
  const auto vocabulary = static_cast<std::size_t>(options_.architecture.vocabulary);
  device().copy_to_host(compute(), host_logits_ + row * vocabulary, logits_ + row * vocabulary,
                        vocabulary * sizeof(float));
  compute().synchronize();
}

void PassRunner::fetch_logits(const Wanted& wanted) {
  const std::vector<bool>& rows = wanted.logits;
  if (!has_head() || std::ranges::find(rows, true) == rows.end()) return;
  if (pieces_) return pieces_->gather_logits(compute(), logits_, host_logits_, rows);
  const auto vocabulary = static_cast<std::size_t>(options_.architecture.vocabulary);
  for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    end = begin + 1;
    if (!rows[begin]) continue;
    while (end < rows.size() && rows[end]) ++end;
    device().copy_to_host(compute(), host_logits_ + begin * vocabulary, logits_ + begin * vocabulary,
                          (end - begin) * vocabulary * sizeof(float));
  }
}

void PassRunner::begin(const PassPlan& plan) {
  check(on_the_way_.size() < (parts_.ahead ? sides_.size() : 1),
        "a pass begins only when one of the two buffers is free");
  side_ = on_the_way_.empty() ? 0 : 1 - on_the_way_.back().side;
  for (const PageCopy& copy : plan.copies)
    cache_.copy_page(device(), compute(), copy.from, copy.to, copy.tokens);
  for (const PageChange& change : plan.changes)
    cache_.set_page(change.slot, change.group, change.index, change.page);
  cache_.upload(device(), compute());
  const PassTokens& pass = plan.tokens;
  const auto tokens = std::ssize(pass.ids);
  const bool repeated = repeated_.repeats(tokens) && pass.alone == tokens && std::ssize(pass.rows) == tokens;
  const model::DecodeBatch batch = batch_of(pass, repeated);
  const std::int64_t rows = batch.row_count;
  Made made{.side = side_,
            .tokens = batch.tokens,
            .rows = rows,
            .normalizers = plan.wanted.normalizers,
            .listed = lay_out_listing(plan.wanted, rows)};
  if (pieces_) pieces_->writable(compute());
  if (repeated) {
    const int kind = (plan.wanted.best ? 1 : 0) + (plan.wanted.normalizers ? 2 : 0) +
                     (plan.wanted.listed.empty() ? 0 : 4) + (side_ > 0 ? 8 : 0);
    if (repeated_.make(batch.tokens, kind, [&] { enqueue(batch, plan.wanted); })) ++replayed_;
  } else {
    enqueue(batch, plan.wanted);
  }
  if (pieces_ && plan.wanted.best && rows > 0)
    pieces_->gather_best(compute(), best_, sides_[side_].best, rows);
  fetch_logits(plan.wanted);
  compute().record(*sides_[side_].finished);
  on_the_way_.push_back(std::move(made));
}

void PassRunner::finish() {
  check(!on_the_way_.empty(), "a pass that began is waited for before it ends");
  wait_for(device(), *sides_[on_the_way_.front().side].finished);
  last_ = std::move(on_the_way_.front());
  on_the_way_.pop_front();
}

ops::BestToken PassRunner::best(std::size_t row) const {
  const ops::BestToken* const told = sides_[last_.side].best;
  if (!pieces_) return told[row];
  std::vector<ops::BestToken> of_pieces;
  for (std::size_t rank = 0; rank < pieces_->pieces().size(); ++rank)
    of_pieces.push_back(told[rank * static_cast<std::size_t>(last_.rows) + row]);
  return best_of_pieces(of_pieces, pieces_->begins(), last_.normalizers);
}

std::int64_t PassRunner::experts_of_token() const {
  const model::Architecture& a = options_.architecture;
  return std::ranges::count_if(a.blocks, &model::BlockShape::mixes_experts) * a.experts.taken;
}

std::span<const std::int32_t> PassRunner::experts(std::size_t block, std::size_t token) const {
  const auto taken = static_cast<std::size_t>(options_.architecture.experts.taken);
  return {host_experts_ + (block * static_cast<std::size_t>(last_.tokens) + token) * taken, taken};
}

ListedRow PassRunner::listed(std::size_t row) const {
  const ops::RowOfLogits& told = host_summaries_[row];
  return {.row = told,
          .listed = {host_largest_ + row * static_cast<std::size_t>(most_listed_),
                     static_cast<std::size_t>(told.count)},
          .vocabulary = options_.architecture.vocabulary};
}

std::span<const float> PassRunner::logits(std::size_t row) const {
  const auto vocabulary = static_cast<std::size_t>(options_.architecture.vocabulary);
  return {host_logits_ + row * vocabulary, vocabulary};
}

}  // namespace octet::generate
