#include "updater.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>

#include "octet/device/profile.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/quantize.h"

namespace octet::store {
namespace {

/// Calls act(first, count) for sequences of runs of equal size that are contiguous and have consecutive
/// scales, as the experts of a weight. Other runs are sequences of one.
template <class Act>
void each_sequence(std::span<const ScaledRun> runs, Act&& act) {
  constexpr std::size_t most = 65535;
  for (std::size_t first = 0; first < runs.size();) {
    std::size_t end = first + 1;
    for (; end < runs.size() && end - first < most; ++end) {
      const ScaledRun &before = runs[end - 1], &run = runs[end];
      if (run.count != before.count || run.begin != before.begin + before.count ||
          run.scale != before.scale + 1)
        break;
    }
    act(runs[first], static_cast<std::int64_t>(end - first));
    first = end;
  }
}

/// Columns of runs that are cast without a transposed copy. Any divisor of their size gives the same values.
constexpr std::int64_t kColumns = 1024;

/// Returns the master values of `count` runs as one matrix.
ops::ConstMatrix matrices(const Segment& s, const ScaledRun& run, std::int64_t count, std::int64_t cols) {
  return {s.master.from(run.begin).data, s.master.dtype, count * run.count / cols, cols, cols};
}

}  // namespace

Updater::Updater(Segments& segments, Arena& arena, const Axes& axes, const Options& options)
    : segments_(segments),
      axes_(axes),
      collectives_(axes.all),
      device_(arena.device()),
      options_(options),
      policy_(policy_of(options, axes.all.size())),
      norm_(arena),
      carrier_(segments, arena, options.state_piece),
      scalars_(arena.reserve_as<ops::StepScalars>("step/scalars", 1)),
      losses_(policy_.tree ? static_cast<std::size_t>(axes.all.size()) *
                                 static_cast<std::size_t>(options.micro_batches)
                           : 1),
      totals_(arena.reserve_as<double>("step/totals", 1 + losses_)),
      ready_(device_.make_event()),
      reduced_(device_.make_event()),
      beside_(device_.make_stream({.name = "update", .background = true})),
      measured_(device_.make_event()),
      cast_(device_.make_event()) {
  if (!segments.scale_names.empty()) {
    scales_.emplace(arena, "fp8_weights", options.recipe, segments.scale_formats, segments.scale_names);
    casts_.emplace(arena, "fp8_weights/casts", std::ssize(segments.scale_names));
  }
  host_ = arena.reserve_as<HostStep>("step/scalars", 1, MemoryKind::pinned);
  totals_out_ = arena.reserve_as<double>("step/totals", 1 + losses_, MemoryKind::pinned);
}

void Updater::write_scalars(const StepInput& input, std::int64_t step, Stream& compute) {
  learning_rate_ = input.learning_rate;
  // Memory of the dry device cannot be accessed.
  if (device_.traits().computes) {
    host_->scalars_in = optim::step_scalars(
        options_.adamw,
        {.step = step, .learning_rate = input.learning_rate, .max_grad_norm = options_.max_grad_norm});
    host_->label_tokens_in = static_cast<double>(input.label_tokens);
  }
  device_.copy_to_device(compute, scalars_, &host_->scalars_in, sizeof(ops::StepScalars));
  device_.copy_to_device(compute, totals_, &host_->label_tokens_in, sizeof(double));
  device_.zero(compute, totals_ + 1, losses_ * sizeof(double));
  if (input.loss_sum == nullptr) return;
  const auto own = policy_.tree ? static_cast<std::size_t>(options_.micro_batches) : 1;
  const auto first = policy_.tree ? static_cast<std::size_t>(collectives_.rank()) * own : 0;
  device_.copy(compute, totals_ + 1 + first, input.loss_sum, own * sizeof(double));
}

void Updater::sum_over_ranks(Stream& compute) {
  if (collectives_.size() > 1) {
    Stream& stream = collectives_.reduce_stream();
    compute.record(*ready_);
    stream.wait(*ready_);
    collectives_.all_reduce_sums(stream, "gradient norm, losses and label tokens", norm_.limbs(),
                                 optim::GradientNorm::limb_count(), totals_,
                                 static_cast<std::int64_t>(1 + losses_));
    stream.record(*reduced_);
    compute.wait(*reduced_);
  }
  device_.copy(compute, &scalars_->label_tokens, totals_, sizeof(double));
}

// The last groups are still being reduced at this point, so the others are measured first. Every wait is
// measured, which takes time too, so there are few waits.
void Updater::measure_norm(Reducer& reducer, Stream& compute) {
  constexpr int kApart = 2;
  norm_.zero(compute);
  for (int g = static_cast<int>(segments_.groups.size()) - 1, waited = g + 1; g >= 0; --g) {
    if (g < waited) {
      waited = std::min(g, kApart);
      reducer.wait_for_sums(waited, compute);
    }
    for (Segment& s : segments_.groups[static_cast<std::size_t>(g)]) {
      if (s.sum) norm_.add(compute, s.sum.data, s.sum.dtype, s.piece);
    }
  }
}

// Reuses the norm's limbs and a word of host memory. The next step writes both before it reads them.
bool Updater::masters_are_finite(Stream& compute) {
  norm_.zero(compute);
  segments_.each([&](Segment& s) {
    if (!s.row.trained()) return;
    for (const ops::AdamWSpan& span : s.spans)
      norm_.add(compute, s.master.from(span.begin).data, s.master.dtype, span.count);
  });
  double* flag = &host_->label_tokens_in;
  static_assert(sizeof *flag == sizeof(std::int64_t));
  device_.copy_to_host(compute, flag, norm_.limbs() + ops::kExactLimbs, sizeof *flag);
  compute.synchronize();
  return std::bit_cast<std::int64_t>(*flag) == 0;
}

void Updater::finish(const StepInput& input, std::int64_t step, Reducer& reducer, Gatherer& gatherer,
                     Stream& compute) {
  const ProfileLabel label(compute, "optimizer");
  write_scalars(input, step, compute);
  measure_norm(reducer, compute);
  sum_over_ranks(compute);
  norm_.finish(compute, scalars_);
  if (limits_.any()) {
    ops::limit_step(compute, {.limits = limits_,
                              .loss_sums = totals_ + 1,
                              .losses = static_cast<std::int64_t>(losses_),
                              .scalars = scalars_});
  }
  device_.copy_to_host(compute, &host_->scalars_out, scalars_, sizeof(ops::StepScalars));
  device_.copy_to_host(compute, totals_out_, totals_, totals_bytes());
  if (!input.update) return;
  if (policy_.shard_state) return update_slices(gatherer, compute);
  update_groups(reducer, gatherer, compute);
}

// adamw computes the amaxes of updated masters, except for parts of a tensor. It computes none if the step is
// skipped: a delayed scale then stays, and a current scale needs its amax again.
void Updater::measure_updated(const Segment& s, Stream& stream) {
  measure(s, stream, delayed(), delayed() ? &scalars_->skip : nullptr);
}

// Groups without scales are gathered while the others are updated. The embedding comes first, because forward
// needs it first. Each group with scales is gathered as soon as it is quantised.
void Updater::update_slices(Gatherer& gatherer, Stream& compute) {
  gatherer.before_change(compute);
  for (std::size_t g = 0; g < segments_.groups.size(); ++g) {
    for (Segment& s : segments_.groups[g]) {
      if (s.sum) update(s, compute);
    }
    if (!has_scales(g)) gatherer.changed_and_ready(static_cast<int>(g), compute);
  }
  if (!scales_) return;
  watch(watches_, compute);
  segments_.each([&](Segment& s) { measure_updated(s, compute); });
  reduce_amaxes(compute);
  scales_->update(compute);
  for (std::size_t g = 0; g < segments_.groups.size(); ++g) {
    if (!has_scales(g)) continue;
    for (Segment& s : segments_.groups[g]) quantise(s, compute);
    gatherer.changed_and_ready(static_cast<int>(g), compute);
  }
  compute.record(*cast_);
}

void Updater::update_groups(Reducer& reducer, Gatherer& gatherer, Stream& compute) {
  // A profile times one stream, and cannot time work that overlaps on another stream.
  Stream& stream = compute.profile() == nullptr ? *beside_ : compute;
  compute.record(*measured_);
  stream.wait(*measured_);
  gatherer.before_change(stream);
  watch(watches_, stream);
  for (std::size_t g = 0; g < segments_.groups.size(); ++g) {
    auto& group = segments_.groups[g];
    reducer.wait_for_totals(static_cast<int>(g), stream);
    for (Segment& s : group) {
      if (s.sum) update(s, stream);
    }
    if (const auto [first, count] = segments_.group_scales[g]; count > 0) {
      for (const Segment& s : group) measure_updated(s, stream);
      scales_->update(stream, first, count);
      for (Segment& s : group) quantise(s, stream);
    }
    gatherer.changed(static_cast<int>(g), stream);
  }
  stream.record(*cast_);
}

void Updater::watch(bool on, Stream& stream) {
  if (!casts_) return;
  on ? casts_->watch(stream) : casts_->stop();
}

void Updater::collect_casts(Stream& compute) {
  if (!casts_) return;
  compute.wait(*cast_);
  casts_->collect(compute);
}

std::vector<precision::CastRow> Updater::cast_rows() const {
  std::vector<precision::CastRow> rows;
  if (!casts_) return rows;
  for (const auto& group : segments_.groups) {
    for (const Segment& s : group) {
      for (std::size_t t = 0; t < s.scaled.size() && s.row.trained(); ++t) {
        for (const ScaledRun& run : s.scaled[t]) {
          rows.push_back({.name = s.spec->tensors[t].name + "/weight",
                          .seen = casts_->collected()[static_cast<std::size_t>(run.scale)]});
        }
      }
    }
  }
  return rows;
}

void Updater::update(Segment& s, Stream& stream) {
  ops::AdamWArgs args = optim::adamw_args(options_.adamw);
  args.master = s.master.data;
  args.master_dtype = s.master.dtype;
  args.grad = s.total.data;
  args.grad_dtype = s.total.dtype;
  args.exp_avg = s.exp_avg.data;
  args.exp_avg_sq = s.exp_avg_sq.data;
  args.moment_dtype = s.exp_avg.dtype;
  args.exp_avg_scale = s.exp_avg_scale;
  args.exp_avg_sq_scale = s.exp_avg_sq_scale;
  args.spans = s.spans;
  args.scalars = scalars_;
  if (s.dtype == DType::bf16 && !s.master_is_copy()) {
    args.copy = s.row.gathered() ? s.shard : s.copy;
    args.copy_dtype = DType::bf16;
  }
  if (is_fp8(s.dtype) && delayed()) {
    args.amax = scales_->amaxes();
  }
  if (s.moments_away) return carrier_.update(args, s.state_count, s.master_away, stream);
  ops::adamw(stream, args);
}

std::size_t Updater::bytes() const {
  std::size_t sum = 0;
  for (const auto& group : segments_.groups) {
    for (const Segment& s : group) {
      if (!s.sum) continue;
      const std::int64_t count = s.state_count;
      if (!s.master_away) sum += 2 * s.master.bytes(count);
      if (!s.moments_away) {
        sum += 2 * (s.exp_avg.bytes(count) + s.exp_avg_sq.bytes(count));
        if (s.exp_avg_scale != nullptr)
          sum += 4 * sizeof(float) * static_cast<std::size_t>(Segment::blocks(count));
      }
      sum += s.total.bytes(count);
      if (!s.master_is_copy()) sum += s.copy_bytes(count);
      // If weights are whole, the slices from other ranks are transposed too.
      if (s.transposed != nullptr && s.row.axis == Axis::none &&
          options_.transposed == TransposedWeights::kept)
        sum += s.copy_bytes(s.padded);
    }
  }
  return sum;
}

void Updater::measure(const Segment& s, Stream& stream, bool parts_only, const std::int32_t* skip) {
  if (!s.row.trained()) return;
  each_sequence(s.held, [&](const ScaledRun& run, std::int64_t count) {
    if (parts_only && !run.part) return;
    if (count > 1 && run.count % kColumns == 0) {
      return ops::quantize_each(stream, {.x = matrices(s, run, count, kColumns),
                                         .count = count,
                                         .into = {.format = s.dtype, .amax = scales_->amax(run.scale)},
                                         .skip = skip});
    }
    for (std::int64_t i = 0; i < count; ++i) {
      as_matrices(s.master.from(run.begin + i * run.count), run.count,
                  [&](const ops::ConstMatrix& x, std::int64_t) {
                    ops::amax(stream, x, scales_->amax(run.scale + i), skip);
                  });
    }
  });
}

// Tensors are whole here. Sharded tensors are transposed after their gather or at use.
void Updater::quantise_both_ways(Segment& s, Stream& stream) {
  for (std::size_t t = 0; t < s.scaled.size(); ++t) {
    const std::int64_t cols = s.spec->tensors[t].cols;
    each_sequence(s.scaled[t], [&](const ScaledRun& run, std::int64_t count) {
      ops::quantize_each(stream, {.x = matrices(s, run, count, cols),
                                  .count = count,
                                  .into = {.format = s.dtype,
                                           .row = s.copy + run.begin,
                                           .transposed = s.transposed + run.begin,
                                           .scale = scales_->scale(run.scale),
                                           .seen = casts_->of(run.scale)}});
    });
  }
}

void Updater::quantise(Segment& s, Stream& stream) {
  if (!s.row.trained() || !is_fp8(s.dtype)) return;
  const bool kept = s.transposed != nullptr && options_.transposed == TransposedWeights::kept;
  if (kept && !s.row.gathered()) return quantise_both_ways(s, stream);
  std::uint8_t* copy = s.row.gathered() ? s.shard : s.copy;
  each_sequence(s.held, [&](const ScaledRun& run, std::int64_t count) {
    const auto into = [&](std::int64_t i, std::int64_t offset) {
      return ops::QuantizeInto{.format = s.dtype,
                               .row = copy + run.begin + i * run.count + offset,
                               .scale = scales_->scale(run.scale + i),
                               .seen = casts_->of(run.scale + i)};
    };
    if (count > 1 && run.count % kColumns == 0) {
      return ops::quantize_each(stream,
                                {.x = matrices(s, run, count, kColumns), .count = count, .into = into(0, 0)});
    }
    for (std::int64_t i = 0; i < count; ++i) {
      as_matrices(
          s.master.from(run.begin + i * run.count), run.count,
          [&](const ops::ConstMatrix& x, std::int64_t offset) { ops::quantize(stream, x, into(i, offset)); });
    }
  });
}

void Updater::make_copies(Scales scales, Gatherer& gatherer, Stream& compute) {
  gatherer.before_change(compute);
  gatherer.loaded();
  segments_.each([&](Segment& s) {
    if (!s.row.trained() || s.dtype != DType::bf16 || s.master_is_copy()) return;
    std::uint8_t* copy = s.row.gathered() ? s.shard : s.copy;
    ops::convert(compute, s.master.data, s.master.dtype, copy, DType::bf16, s.state_count);
  });
  if (scales_) {
    if (scales == Scales::as_loaded && delayed()) {
      scales_->restore(compute);
    } else {  // a current scale depends only on the weights
      segments_.each([&](const Segment& s) { measure(s, compute, false, nullptr); });
      if (policy_.shard_state) reduce_amaxes(compute);
      scales_->update(compute);
    }
    watch(true, compute);
    segments_.each([&](Segment& s) { quantise(s, compute); });
    compute.record(*cast_);
  }
  for (int g = 0; g < static_cast<int>(segments_.groups.size()); ++g) gatherer.changed_and_ready(g, compute);
}

void Updater::reduce_amaxes(Stream& compute) {
  if (collectives_.size() == 1 || scales_->count() == 0) return;
  compute.record(*ready_);
  axes_.each([&](comm::Collectives& collectives) {
    if (collectives.size() == 1) return;
    Stream& stream = collectives.reduce_stream();
    stream.wait(*ready_);
    each_run_of_scales(segments_, axes_, collectives, true, [&](std::int64_t first, std::int64_t count) {
      collectives.all_reduce_max(stream, "amaxes of weights", scales_->amaxes() + first, count);
    });
    stream.record(*reduced_);
    compute.wait(*reduced_);
  });
}

StepResult Updater::result() const {
  if (!device_.traits().computes) return {.learning_rate = learning_rate_};
  return {.loss_sum = std::accumulate(totals_out_ + 1, totals_out_ + 1 + losses_, 0.0),
          .label_tokens = static_cast<std::int64_t>(totals_out_[0]),
          .grad_norm = static_cast<double>(host_->scalars_out.grad_norm),
          .skipped = host_->scalars_out.skip != 0,
          .learning_rate = learning_rate_};
}

}  // namespace octet::store
