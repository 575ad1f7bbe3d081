#include "octet/train/step_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "faults/finite_weights.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/optim/schedule.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/adapters.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/train/engine.h"
#include "octet/train/fit.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_writer.h"
#include "step_loop.h"

namespace octet::train {
namespace {

// The batches of the file: [steps, rows, length]. Labels are not shifted.
struct Batches {
  std::int64_t steps = 1, rows = 0, length = 0;
  std::vector<std::int64_t> ids, labels, document;  ///< document is empty if the file has none
};

std::vector<std::int64_t> read_integers(const weights::SafetensorsFile& file, const std::string& name,
                                        const std::vector<std::int64_t>& shape) {
  const auto& tensor = file.at(name);
  if (tensor.shape != shape) {
    throw Error({.what = "'" + name + "' and 'input_ids' differ in shape",
                 .expected = weights::shape_text(shape),
                 .found = weights::shape_text(tensor.shape),
                 .where = file.path(),
                 .fix = "write both with the same shape",
                 .code = ExitCode::usage});
  }
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.count));
  file.read(name, 0, tensor.count, values.data());
  return values;
}

Batches read_batches(const ProbeOptions& options) {
  const weights::SafetensorsFile file(options.batch);
  const auto shape = file.at("input_ids").shape;
  const std::size_t dimensions = options.steps > 0 ? 3 : 2;
  if (shape.size() != dimensions || (options.steps > 0 && shape[0] < options.steps)) {
    throw Error({.what = "'input_ids' has the wrong shape",
                 .expected = options.steps > 0
                                 ? "[" + std::to_string(options.steps) + " or more, rows, length]"
                                 : "[rows, length]",
                 .found = weights::shape_text(shape),
                 .where = options.batch,
                 .fix = options.steps > 0 ? "give one batch per step" : "use --steps for several batches",
                 .code = ExitCode::usage});
  }
  Batches b;
  b.steps = options.steps > 0 ? options.steps : 1;
  b.rows = shape[dimensions - 2];
  b.length = shape[dimensions - 1];
  b.ids = read_integers(file, "input_ids", shape);
  b.labels = read_integers(file, "labels", shape);
  if (file.find("document")) b.document = read_integers(file, "document", shape);
  if (b.rows == 0 || b.length == 0) {
    throw Error({.what = "the batch is empty",
                 .expected = "rows with at least one token",
                 .found = "input_ids " + weights::shape_text(shape),
                 .where = options.batch,
                 .fix = "write a batch with rows",
                 .code = ExitCode::usage});
  }
  return b;
}

// The contiguous block of rows of a rank.
struct Block {
  std::int64_t begin = 0, end = 0;
};
Block block_of(std::int64_t rows, int rank, int world) {
  const std::int64_t each = (rows + world - 1) / world;
  return {std::min(rows, rank * each), std::min(rows, (rank + 1) * each)};
}

// Returns the rows of one step as a micro-batch. With `all_rows` every token is a label row, so that the head
// computes all logits. Rows without a label have target -100.
runtime::HostBatch make_batch(const Batches& b, std::int64_t step, Block block, bool all_rows) {
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  std::vector<std::int32_t> ids, labels;
  for (std::int64_t row = block.begin; row < block.end; ++row) {
    const auto start = static_cast<std::size_t>((step * b.rows + row) * b.length);
    ids.clear(), labels.clear();
    for (std::size_t t = start; t < start + static_cast<std::size_t>(b.length); ++t) {
      if (t > start && !b.document.empty() && b.document[t] != b.document[t - 1]) {
        runtime::add_document(batch, ids, labels);
        ids.clear(), labels.clear();
      }
      // Clamped, so that a huge id is still detected as outside the vocabulary.
      ids.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(b.ids[t], -1, INT32_MAX)));
      labels.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(b.labels[t], -100, INT32_MAX)));
    }
    runtime::add_document(batch, ids, labels);
    ++batch.items;
  }
  if (all_rows) {
    std::vector<std::int32_t> targets(batch.ids.size(), -100);
    for (std::size_t i = 0; i < batch.targets.size(); ++i) {
      targets[static_cast<std::size_t>(batch.label_rows[i])] = batch.targets[i];
    }
    batch.targets = std::move(targets);
    batch.label_rows.resize(batch.ids.size());
    for (std::size_t t = 0; t < batch.ids.size(); ++t) batch.label_rows[t] = static_cast<std::int32_t>(t);
  }
  return batch;
}

// Values of named tensors, gathered on rank 0 from the slices of all ranks.
class Collected {
 public:
  // Collective. Multiplies by `scale`. `wanted` returns the new name of a slice, or rejects the slice.
  template <typename Wanted>
  void gather(comm::Job& job, const std::vector<TensorSlice>& slices, double scale, const Wanted& wanted) {
    std::string bytes;
    const auto put = [&bytes](const void* data, std::size_t size) {
      bytes.append(static_cast<const char*>(data), size);
    };
    for (const TensorSlice& slice : slices) {
      const std::string name = wanted(slice.name);
      if (name.empty()) continue;
      const std::int64_t header[] = {static_cast<std::int64_t>(name.size()), slice.begin, slice.count,
                                     static_cast<std::int64_t>(slice.shape.size())};
      put(header, sizeof header);
      put(name.data(), name.size());
      put(slice.shape.data(), slice.shape.size() * sizeof(std::int64_t));
      if (slice.dtype == DType::f32) {
        put(slice.data, static_cast<std::size_t>(slice.count) * sizeof(float));
        continue;
      }
      check(slice.dtype == DType::bf16, "parameters and gradients are stored in fp32 or bf16");
      for (std::int64_t i = 0; i < slice.count; ++i) {
        const float value = from_bf16(static_cast<const std::uint16_t*>(slice.data)[i]);
        put(&value, sizeof value);
      }
    }
    const auto all = job.all_gather_bytes(bytes);
    if (job.rank() != 0) return;
    for (const std::string& part : all) take(part, scale);
  }

  void set(const std::string& name, std::vector<std::int64_t> shape, std::vector<float> values) {
    tensors_[name] = {std::move(shape), std::move(values)};
  }

  void write(const std::string& path) {
    std::vector<TensorSlice> slices;
    for (auto& [name, tensor] : tensors_) {
      slices.push_back({name, DType::f32, tensor.shape, 0, static_cast<std::int64_t>(tensor.values.size()),
                        tensor.values.data()});
    }
    weights::write_safetensors(path, slices);
  }

 private:
  struct Tensor {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };

  void take(const std::string& part, double scale) {
    const char* at = part.data();
    const char* const end = at + part.size();
    while (at < end) {
      std::int64_t header[4];
      std::memcpy(header, at, sizeof header);
      at += sizeof header;
      Tensor& tensor = tensors_[std::string(at, static_cast<std::size_t>(header[0]))];
      const std::string name(at, static_cast<std::size_t>(header[0]));
      at += header[0];
      tensor.shape.resize(static_cast<std::size_t>(header[3]));
      std::memcpy(tensor.shape.data(), at, tensor.shape.size() * sizeof(std::int64_t));
      at += tensor.shape.size() * sizeof(std::int64_t);
      tensor.values.resize(static_cast<std::size_t>(element_count(tensor.shape, name)));
      for (std::int64_t i = 0; i < header[2]; ++i, at += sizeof(float)) {
        float value;
        std::memcpy(&value, at, sizeof value);
        tensor.values[static_cast<std::size_t>(header[1] + i)] = static_cast<float>(value * scale);
      }
    }
  }

  std::map<std::string, Tensor> tensors_;
};

bool is_parameter(const std::string& name) {
  return name.find('/') == std::string::npos;
}

// Copies the logits of this rank's rows in fp32 while the head computes them.
class LogitsKeeper {
 public:
  LogitsKeeper(Device& device, std::int64_t rows, std::int64_t vocabulary, DType dtype)
      : device_(device), vocabulary_(vocabulary), dtype_(dtype) {
    bytes_.resize(static_cast<std::size_t>(rows * vocabulary) * size_of(dtype));
  }
  model::LogitsHook hook() {
    return [this](Stream& stream, const ops::ConstMatrix& logits, std::int64_t first_row) {
      check(logits.dtype == dtype_ && logits.ld == logits.cols, "logits come dense and in the compute dtype");
      device_.copy_to_host(
          stream, bytes_.data() + static_cast<std::size_t>(first_row * vocabulary_) * size_of(dtype_),
          logits.data, static_cast<std::size_t>(logits.rows * logits.cols) * size_of(dtype_));
    };
  }
  std::vector<float> values() const {
    std::vector<float> out(bytes_.size() / size_of(dtype_));
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (dtype_ == DType::f32) {
        std::memcpy(&out[i], &bytes_[i * sizeof(float)], sizeof(float));
      } else {
        std::uint16_t bits;
        std::memcpy(&bits, &bytes_[i * sizeof bits], sizeof bits);
        out[i] = from_bf16(bits);
      }
    }
    return out;
  }

 private:
  Device& device_;
  std::int64_t vocabulary_;
  DType dtype_;
  std::vector<char> bytes_;
};

// Runs one batch without update: loss, logits, gradients. Returns whether loss and gradient norm are finite.
bool probe_once(Engine& engine, StepLoop& loop, Device& device, const Batches& batches, Collected& result) {
  comm::Job& job = engine.job();
  const Block block = block_of(batches.rows, job.rank(), job.size());
  const runtime::HostBatch batch = make_batch(batches, 0, block, true);
  const std::int64_t vocabulary = engine.options().architecture.vocabulary;
  LogitsKeeper keeper(device, batch.tokens(), vocabulary, engine.core().recipe().compute);
  const store::StepResult step = loop.look([&](bool) { return runtime::HostBatch(batch); }, keeper.hook());

  std::vector<float> own = keeper.values();
  const std::vector<std::int64_t> shape{batches.rows, batches.length, vocabulary};
  const TensorSlice logits{"logits",
                           DType::f32,
                           shape,
                           block.begin * batches.length * vocabulary,
                           static_cast<std::int64_t>(own.size()),
                           own.data()};
  result.gather(job, {logits}, 1.0, [](const std::string& name) { return name; });
  const double labels = static_cast<double>(std::max<std::int64_t>(1, step.label_tokens));
  result.gather(job, engine.store().gradient_slices(), 1.0 / labels,
                [](const std::string& name) { return "grad." + name; });
  result.set("loss", {1}, {static_cast<float>(step.loss_sum / labels)});
  if (job.rank() == 0) {
    log::info("loss " + std::to_string(step.loss_sum / labels) + " over " +
              std::to_string(step.label_tokens) + " label tokens, gradient norm " +
              std::to_string(step.grad_norm));
  }
  return std::isfinite(step.loss_sum) && std::isfinite(step.grad_norm);
}

// Runs training steps on the batches: losses, norms, final parameters. Returns whether all losses and norms
// are finite.
bool probe_steps(Engine& engine, StepLoop& loop, const Batches& batches, Collected& result) {
  comm::Job& job = engine.job();
  const Block block = block_of(batches.rows, job.rank(), job.size());
  std::vector<float> losses, norms;
  while (loop.done() < batches.steps) {
    const store::StepResult r =
        loop.take([&](bool) { return make_batch(batches, loop.done(), block, false); });
    losses.push_back(
        static_cast<float>(r.loss_sum / static_cast<double>(std::max<std::int64_t>(1, r.label_tokens))));
    norms.push_back(static_cast<float>(r.grad_norm));
    if (job.rank() == 0) {
      log::info("step " + std::to_string(loop.done()) + ": loss " + std::to_string(losses.back()) +
                ", gradient norm " + std::to_string(norms.back()));
    }
  }
  engine.store().synchronize(engine.compute());
  result.gather(job, engine.store().owned_slices(), 1.0,
                [](const std::string& name) { return is_parameter(name) ? "final." + name : std::string(); });
  result.set("step_loss", {batches.steps}, losses);
  result.set("step_grad_norm", {batches.steps}, norms);
  const auto is_finite = [](float value) { return std::isfinite(value); };
  return std::ranges::all_of(losses, is_finite) && std::ranges::all_of(norms, is_finite);
}

// Throws Error (usage) on all ranks if a loss or a gradient norm is not finite. Names the tensor in the files
// that causes it. `fresh`: the weights are random.
void require_finite(comm::Job& job, bool finite, const ProbeOptions& options, bool fresh,
                    const setup::NamedModel& model) {
  if (job.all_min(finite ? 1 : 0) != 0) return;
  const std::string tensor = fresh ? "" : not_finite_in(job, model.folder, model.adapters);
  job.together([&] {
    throw Error({.what = "the loss or the gradient is not finite",
                 .expected = "finite values",
                 .found = tensor.empty() ? "weights of the files are finite"
                                         : "values that are not finite in " + tensor,
                 .where = options.model + ", " + options.batch,
                 .fix = tensor.empty() ? "compute in a wider dtype, or lower learning_rate; " + options.out +
                                             " holds the values"
                                       : "fetch the weights again, or name a base with finite weights",
                 .code = ExitCode::usage});
  });
}

// A file that no probe wrote may be the batch, weights of a model or results of another program.
void require_replaceable(const std::string& path) {
  if (!path_exists(path)) return;
  try {
    const weights::SafetensorsFile file(path);
    if (file.find("loss") != nullptr || file.find("step_loss") != nullptr) return;
  } catch (const Error&) {
    // A file that is not safetensors is refused below.
  }
  throw Error({.what = "--out is a file that trainer probe did not write",
               .expected = "a new file, or the result of an earlier probe",
               .where = path,
               .fix = "name another file, or remove this one",
               .code = ExitCode::usage});
}

}  // namespace

void probe(runtime::Session& session, const config::Resolved& resolved, const ProbeOptions& options) {
  comm::Job& job = session.job();
  config::Config config = resolved.config;
  job.watch({.timeout_seconds = static_cast<double>(config.ddp_timeout)});
  // A probe compares single steps, so the default learning rate is constant.
  if (!resolved.is_set("lr_scheduler_type")) config.lr_scheduler_type = "constant";
  Batches batches;
  model::Architecture architecture;
  std::unique_ptr<optim::Schedule> schedule;
  setup::NamedModel model;
  job.together([&] {
    if (job.rank() == 0) require_replaceable(options.out);
    model = setup::named_model(options.model);
    architecture = runtime::read_model(model.folder);
    setup::require_writes_text(architecture, model.folder);
    // If adapters are trained, an adapter named as the model comes first.
    if (setup::trains_adapters(config) && !model.adapters.empty()) {
      const std::string others = config.adapter_name_or_path ? "," + *config.adapter_name_or_path : "";
      config.adapter_name_or_path = model.adapters.front() + others;
      model.adapters.clear();
    }
    batches = read_batches(options);
    schedule = std::make_unique<optim::Schedule>(setup::schedule_options(config, batches.steps));
  });
  const Block block = block_of(batches.rows, 0, job.size());
  const std::int64_t tokens = (block.end - block.begin) * batches.length;
  const std::int64_t documents = batches.document.empty() ? block.end - block.begin : tokens;
  std::unique_ptr<Engine> engine;
  Collected result;
  runtime::InstanceOptions how;
  job.together([&] {
    setup::require_no_preferences(config, "trainer probe");
    how = setup::instance_options(config, architecture, tokens, batches.length, documents);
    for (runtime::AddedAdapter& adapter : setup::added_adapters(model.adapters, architecture))
      how.added.push_back(std::move(adapter));
  });
  how = with_fitting_level(std::move(how), config, job, session.device());
  job.together([&] { require_room(how, job.place(), session.device()); });
  job.together([&] { engine = std::make_unique<Engine>(session.device(), job, session.data(), how); });
  if (config.train_from_scratch) {
    engine->initialise(static_cast<std::uint64_t>(config.seed));
  } else {
    engine->load_weights(model.folder);
  }
  StepLoop loop(*engine, *schedule, 1);
  const bool finite = options.steps > 0 ? probe_steps(*engine, loop, batches, result)
                                        : probe_once(*engine, loop, session.device(), batches, result);
  engine->instance().check_gemms();
  const std::string gemms = engine->instance().audit_of_all().summary();
  job.together([&] {
    if (job.rank() != 0) return;
    log::info(gemms);
    result.write(options.out);
  });
  require_finite(job, finite, options, config.train_from_scratch, model);
}

}  // namespace octet::train
