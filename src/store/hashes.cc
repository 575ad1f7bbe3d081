#include "octet/store/hashes.h"

#include <functional>
#include <utility>
#include <vector>

#include "fixed.h"
#include "octet/base/error.h"
#include "segments.h"
#include "store_parts.h"
#include "updater.h"

namespace octet::store {

// The memory of a store that must not change between two updates.

/// Memory of a rank that its device can read.
struct Piece {
  void* data = nullptr;
  std::int64_t bytes = 0;
  Held kind{};
  bool replica = false;  ///< equal on all ranks
};

/// Returns all state that this rank holds, in the same order on every rank. `keeps_transposed`: transposed
/// copies are made with the weights, not at use.
std::vector<Piece> held(Segments& segments, Updater& updater, const Fixed& fixed, bool keeps_transposed);

namespace {

class Pieces {
 public:
  explicit Pieces(const Segments& segments) : world_(segments.world) {
    for (const auto& group : segments.groups) {
      for (const Segment& s : group) split_ = split_ || s.spec->split_experts;
    }
  }
  /// Returns the axis of memory of a segment. Other ranks have other experts.
  static Axis axis_of(const Segment& s, Axis axis) { return s.spec->split_experts ? Axis::data : axis; }

  void add(Held kind, const void* data, std::size_t bytes, Axis axis) {
    if (data == nullptr || bytes == 0) return;
    pieces_.push_back({.data = const_cast<void*>(data),
                       .bytes = static_cast<std::int64_t>(bytes),
                       .kind = kind,
                       .replica = axis == Axis::none && world_ > 1});
  }
  void add_scales(Held kind, const precision::ScaleSet* scales) {
    if (scales == nullptr || scales->count() == 0) return;
    const auto count = static_cast<std::size_t>(scales->count());
    for (const TensorSlice& slice : scales->state())
      add(kind, slice.data, static_cast<std::size_t>(slice.count) * size_of(slice.dtype),
          split_ ? Axis::data : Axis::none);
    add(kind, scales->scale(0), count * sizeof(float), split_ ? Axis::data : Axis::none);
  }
  const std::vector<Piece>& all() const { return pieces_; }

 private:
  int world_;
  bool split_ = false;  ///< other ranks have other experts, with other scales
  std::vector<Piece> pieces_;
};

/// Adds the tensors of a segment that are stored in `data`, from its element `begin` on. Padding is left out:
/// it is never read, and loading does not overwrite it.
void add_tensors(Held kind, const Segment& s, const Array& data, std::int64_t begin, std::int64_t count,
                 Axis axis, Pieces& pieces) {
  if (!data) return;
  for (const TensorRun& run : runs_within(*s.spec, begin, count))
    pieces.add(kind, data.from(run.begin).data, data.bytes(run.count), Pieces::axis_of(s, axis));
}

void add_fixed(const Segment& s, Pieces& pieces) {
  const bool whole = s.row.axis == Axis::none;
  if (s.row.decoded()) {
    const auto bytes = static_cast<std::size_t>(whole ? s.world * s.stored_slice : s.stored_slice);
    pieces.add(Held::frozen, whole ? s.stored : s.stored_shard, bytes, s.row.axis);
  } else {
    add_tensors(Held::frozen, s, s.kept(), s.state_begin, s.state_count, s.row.axis, pieces);
  }
  if (s.row_scales == nullptr) return;
  const auto scales = static_cast<std::size_t>(row_scale_of(*s.spec, s.spec->tensors.size()));
  pieces.add(Held::frozen, s.row_scales, scales * sizeof(float), s.row.axis);
}

void add_trained(const Segment& s, bool keeps_transposed, Pieces& pieces) {
  const auto* master = static_cast<const std::uint8_t*>(s.master.data);
  const bool whole = s.row.axis == Axis::none;
  const auto add_copies = [&](std::uint8_t* data, std::int64_t begin, std::int64_t count) {
    add_tensors(Held::parameters, s, {.data = data, .dtype = s.dtype}, begin, count, s.row.axis, pieces);
  };
  if (whole) {
    add_copies(s.copy, 0, s.padded);
    if (keeps_transposed) add_copies(s.transposed, 0, s.padded);
  } else if (s.shard != master) {
    add_copies(s.shard, s.own, s.slice);
  }
  const auto add_state = [&](Held kind, const Array& data) {
    add_tensors(kind, s, data, s.state_begin, s.state_count, s.row.state_axis, pieces);
  };
  const bool inside = whole && master >= s.copy && master < s.copy + s.copy_bytes(s.padded);
  if (!inside) add_state(Held::masters, s.master);
  add_state(Held::moments, s.exp_avg);
  add_state(Held::moments, s.exp_avg_sq);
  for (float* scales : {s.exp_avg_scale, s.exp_avg_sq_scale}) {
    if (scales == nullptr) continue;
    for (const TensorRun& run : runs_within(*s.spec, s.state_begin, s.state_count)) {
      pieces.add(Held::moments, scales + run.begin / ops::kMomentBlock,
                 static_cast<std::size_t>(Segment::blocks(run.count)) * sizeof(float),
                 Pieces::axis_of(s, s.row.state_axis));
    }
  }
}

}  // namespace

const char* name_of(Held kind) {
  constexpr const char* kNames[] = {"parameters", "masters", "moments", "frozen weights"};
  return kNames[static_cast<int>(kind)];
}

std::vector<Piece> held(Segments& segments, Updater& updater, const Fixed& fixed, bool keeps_transposed) {
  Pieces pieces(segments);
  segments.each([&](const Segment& s) {
    s.row.trained() ? add_trained(s, keeps_transposed, pieces) : add_fixed(s, pieces);
  });
  pieces.add_scales(Held::parameters, updater.scales());
  pieces.add_scales(Held::frozen, fixed.scales());
  return pieces.all();
}

namespace {

constexpr std::size_t kOne = 2 * kHeldKinds, kGradientCell = kOne + 1, kCells = kGradientCell + 1;

/// Rounds up to whole words, because the position of a piece in a hash is a whole word.
std::uint64_t words(std::int64_t bytes) {
  return (static_cast<std::uint64_t>(bytes) + 7) / 8 * 8;
}

}  // namespace

/// The parts of a store that Hashes reads.
struct Hashes::Inside {
  ParameterStore& store;
  const model::ParameterLayout& layout;
  const std::vector<model::GroupParameters>& parameters;
  Segments& segments;
  const Fixed& fixed;
  Gatherer& gatherer;
  Reducer& reducer;
  Updater& updater;
  Device& device;
  Policy policy;
  bool keeps_transposed;  ///< transposed copies are made with the weights, not at use
};

Hashes::Inside Hashes::inside_of(ParameterStore& store) {
  ParameterStore::Parts& parts = *store.parts_;
  return {.store = store,
          .layout = parts.layout,
          .parameters = parts.parameters,
          .segments = parts.segments,
          .fixed = parts.fixed,
          .gatherer = parts.gatherer,
          .reducer = parts.reducer,
          .updater = parts.updater,
          .device = parts.device,
          .policy = policy_of(parts.options, parts.collectives.size()),
          .keeps_transposed = parts.options.transposed == TransposedWeights::kept};
}

/// Parameter source for one more pass through a micro-batch.
class Hashes::Replay final : public model::ParameterSource {
 public:
  explicit Replay(Hashes& hashes) : hashes_(hashes), in_(*hashes.inside_), asked_(in_.layout.groups.size()) {
    for (std::size_t g = 0; g < asked_.size(); ++g) {
      gradients_.push_back(in_.reducer.buffers(static_cast<int>(g)));
      gradients_.back().set_overwrite(true);
    }
  }
  const model::ParameterLayout& layout() const override { return in_.layout; }
  const model::GroupParameters& acquire(int group, model::Pass pass, Stream& compute) override {
    in_.gatherer.acquire(group, pass, compute);
    return in_.parameters[static_cast<std::size_t>(group)];
  }
  void release(int group, model::Pass, Stream& compute) override { in_.gatherer.release(group, compute); }
  void blocks_done(Stream&) override {}
  const model::GroupGradients& gradients(int group, Stream& compute) override {
    auto asked = asked_[static_cast<std::size_t>(group)];
    if (!asked) in_.reducer.clear(group, compute);
    asked = true;
    return gradients_[static_cast<std::size_t>(group)];
  }
  void give_back(int group, Stream& compute) override { hashes_.add_gradients(group, compute); }

 private:
  Hashes& hashes_;
  Inside& in_;
  std::vector<bool> asked_;
  std::vector<model::GroupGradients> gradients_;
};

Hashes::Hashes(ParameterStore& store, Arena& arena)
    : inside_(std::make_unique<Inside>(inside_of(store))),
      cells_(arena.reserve_as<ops::Hash>("checks/hashes", kCells)),
      host_(arena.reserve_as<ops::Hash>("checks/hashes", kCells, MemoryKind::pinned)) {
  inside_->reducer.watch(
      [this](int group, int micro_batch, Stream& compute) { given_back(group, micro_batch, compute); });
}

Hashes::~Hashes() {
  inside_->reducer.watch({});
}

// Copies the first `count` cells to the host.
void Hashes::take(std::size_t count, Stream& compute) {
  inside_->device.copy_to_host(compute, host_, cells_, count * sizeof *cells_);
  compute.synchronize();
}

StateHashes Hashes::state(Stream& compute) {
  Inside& in = *inside_;
  in.store.synchronize(compute);
  in.device.zero(compute, cells_, kOne * sizeof *cells_);
  std::array<std::uint64_t, kOne> at{};
  for (const Piece& piece : held(in.segments, in.updater, in.fixed, in.keeps_transposed)) {
    const auto cell = static_cast<std::size_t>(piece.kind) + (piece.replica ? 0 : kHeldKinds);
    ops::add_hash(compute, {.data = piece.data, .bytes = piece.bytes, .at = at[cell], .to = cells_ + cell});
    at[cell] += words(piece.bytes);
  }
  take(kOne, compute);
  StateHashes found;
  for (std::size_t kind = 0; kind < kHeldKinds; ++kind) {
    found.replicas[kind] = host_[kind];
    found.own[kind] = host_[kHeldKinds + kind];
  }
  return found;
}

bool Hashes::masters_are_finite(ParameterStore& store, Stream& compute) {
  check(!store.parts_->stepping, "master weights are read only between steps");
  store.synchronize(compute);
  return store.parts_->updater.masters_are_finite(compute);
}

bool Hashes::frozen_were_finite(const ParameterStore& store) {
  return store.parts_->fixed.finite();
}

ops::Hash Hashes::sums(Stream& compute) {
  Inside& in = *inside_;
  if (in.segments.world == 1 || in.policy.shard_state) return {};
  in.store.synchronize(compute);
  in.device.zero(compute, cells_ + kOne, sizeof *cells_);
  std::uint64_t at = 0;
  in.segments.each([&](const Segment& s) {
    if (!s.total || s.spec->split_experts) return;
    const auto bytes = static_cast<std::int64_t>(s.total.bytes(s.padded));
    ops::add_hash(compute, {.data = s.total.data, .bytes = bytes, .at = at, .to = cells_ + kOne});
    at += words(bytes);
  });
  take(kOne + 1, compute);
  return host_[kOne];
}

ops::Hash Hashes::of(const std::vector<TensorSlice>& slices, Stream& compute) {
  inside_->device.zero(compute, cells_ + kOne, sizeof *cells_);
  std::uint64_t at = 0;
  for (const TensorSlice& slice : slices) {
    const auto bytes = slice.count * static_cast<std::int64_t>(size_of(slice.dtype));
    ops::add_hash(compute, {.data = slice.data, .bytes = bytes, .at = at, .to = cells_ + kOne});
    at += words(bytes);
  }
  take(kOne + 1, compute);
  return host_[kOne];
}

bool Hashes::apart() const {
  return inside_->policy.reduce_each || inside_->policy.tree;
}

// Hashes tensors only, because gaps between tensors are undefined.
void Hashes::add_gradients(int group, Stream& compute) {
  std::uint64_t at = 0;  // groups are 2^45 apart, more than any group has
  for (const Segment& s : inside_->segments.groups[static_cast<std::size_t>(group)]) {
    if (s.gradient) {
      for (const model::TensorSpec& tensor : s.spec->tensors) {
        ops::add_hash(compute, {.data = s.gradient.from(tensor.offset).data,
                                .bytes = static_cast<std::int64_t>(s.gradient.bytes(tensor.count())),
                                .at = (static_cast<std::uint64_t>(group) << 45) + at +
                                      words(static_cast<std::int64_t>(s.gradient.bytes(tensor.offset))),
                                .to = cells_ + kGradientCell});
      }
    }
    at += words(static_cast<std::int64_t>(s.gradient.bytes(s.padded)));
  }
}

ops::Hash Hashes::watched(Stream& compute) {
  take(kCells, compute);
  inside_->device.zero(compute, cells_ + kGradientCell, sizeof *cells_);
  return host_[kGradientCell];
}

std::unique_ptr<model::ParameterSource> Hashes::replay() {
  return std::make_unique<Replay>(*this);
}

void Hashes::pass_by(model::ParameterSource& replay, Stream& compute) {
  const int groups = static_cast<int>(inside_->layout.groups.size());
  const auto look = [&](int group, model::Pass pass) {
    replay.acquire(group, pass, compute);
    replay.release(group, pass, compute);
  };
  for (int g = 0; g < groups; ++g) look(g, model::Pass::forward);
  for (int g = groups - 1; g >= model::lowest_trained_group(inside_->layout); --g)
    look(g, model::Pass::backward);
}

void Hashes::given_back(int group, int micro_batch, Stream& compute) {
  if (flips_) {
    flips_ = false;
    std::vector<const Segment*> trained;
    for (const Segment& s : inside_->segments.groups[static_cast<std::size_t>(group)])
      if (s.gradient) trained.push_back(&s);
    const Segment& s = *trained[draw_ % trained.size()];
    const auto& tensor = s.spec->tensors[draw_ / 7 % s.spec->tensors.size()];
    flip_at(s.gradient.from(tensor.offset).data, static_cast<std::int64_t>(s.gradient.bytes(tensor.count())),
            draw_, compute);
  }
  if (micro_batch == watched_) add_gradients(group, compute);
}

void Hashes::flip_gradient(std::uint64_t draw) {
  flips_ = true;
  draw_ = draw;
}

std::string Hashes::flip_at(void* data, std::int64_t bytes, std::uint64_t draw, Stream& compute) {
  const std::int64_t bit = static_cast<std::int64_t>((draw >> 8) % (static_cast<std::uint64_t>(bytes) * 8));
  auto* at = static_cast<std::uint8_t*>(data) + bit / 8;
  auto* host = reinterpret_cast<std::uint8_t*>(host_ + kOne);
  inside_->device.copy_to_host(compute, host, at, 1);
  compute.synchronize();
  *host = static_cast<std::uint8_t>(*host ^ (1u << (bit % 8)));
  inside_->device.copy_to_device(compute, at, host, 1);
  compute.synchronize();
  return "bit " + std::to_string(bit % 8) + " of byte " + std::to_string(bit / 8);
}

std::string Hashes::flip(Held kind, std::uint64_t draw, Stream& compute) {
  inside_->store.synchronize(compute);
  std::vector<Piece> candidates =
      held(inside_->segments, inside_->updater, inside_->fixed, inside_->keeps_transposed);
  const auto of_kind = [&](Held wanted) {
    std::vector<Piece> found;
    for (const Piece& piece : candidates)
      if (piece.kind == wanted) found.push_back(piece);
    return found;
  };
  std::vector<Piece> found = of_kind(kind);
  // A master that is its own compute copy counts as a parameter, or a parameter as a master.
  if (found.empty() && kind == Held::masters) found = of_kind(Held::parameters);
  if (found.empty() && kind == Held::parameters) found = of_kind(Held::masters);
  if (found.empty()) return "";
  const Piece& piece = found[draw % found.size()];
  return std::string(name_of(piece.kind)) + ", " + flip_at(piece.data, piece.bytes, draw, compute);
}

}  // namespace octet::store
