// Checks a training step of a small model.
#include <cmath>
#include <memory>

#include "octet/comm/mesh.h"
#include "octet/device/cpu.h"
#include "octet/model/shapes.h"
#include "octet/train/engine.h"
#include "verify_checks.h"

namespace octet::verify {
namespace {

constexpr const char* kReport =
    "look at the device (dmesg, nvidia-smi), and report it with trainer --version";

/// Loss and gradient norm of one step of a small model.
struct SmallStep {
  double loss = 0, norm = 0;
  std::int64_t fp8_gemms = 0;
  std::string gemms;  ///< the GEMMs that ran in FP8
};

SmallStep small_step(Device& device, bool fp8) {
  constexpr std::int64_t kLength = 128;
  const auto job = comm::make_self_job();
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), device, comm::Carrier::automatic);
  runtime::InstanceOptions options;
  options.architecture = model::find_shape("tiny");
  options.store.recipe.compute = DType::bf16;
  if (fp8) options.store.recipe.kind = precision::RecipeKind::current;
  options.transformer.max_tokens = options.transformer.max_length = kLength;
  train::Engine engine(device, *job, *data, options);
  engine.initialise(1);
  runtime::HostBatch batch;
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < kLength; ++i) ids.push_back(i * 31 % 4096);
  batch.cu_seqlens.push_back(0);
  runtime::add_document(batch, ids, ids);
  engine.begin(1);
  engine.micro_batch(batch);
  const store::StepResult step = engine.finish(1e-4);
  return {.loss = step.loss_sum / static_cast<double>(step.label_tokens),
          .norm = step.grad_norm,
          .fp8_gemms = engine.audit().fp8_gemms(),
          .gemms = engine.audit().summary()};
}

// The CPU multiplies FP8 values exactly, so it is the reference for any device. The CPU itself is compared
// with bf16.
std::string compare_steps(runtime::Session& session) {
  const std::unique_ptr<Device> host = make_cpu_device({.threads = cpu::op_threads()});
  const SmallStep expected = small_step(*host, true), plain = small_step(*host, false);
  const SmallStep found = small_step(session.device(), true);
  const auto near = [](double a, double b, double relative) {
    return std::abs(a - b) <= relative * std::abs(b);
  };
  const auto text = [](const SmallStep& s) {
    return "loss " + std::to_string(s.loss) + ", gradient norm " + std::to_string(s.norm);
  };
  if (found.fp8_gemms == 0) throw failed("no GEMM ran in FP8", "GEMMs in FP8", "none", kReport);
  if (!near(found.loss, expected.loss, 2e-3) || !near(found.norm, expected.norm, 5e-2)) {
    throw failed("a small FP8 step differs from the CPU's", text(expected), text(found), kReport);
  }
  if (!near(found.loss, plain.loss, 2e-2) || !near(found.norm, plain.norm, 0.2)) {
    throw failed("a small FP8 step is far from one in bf16", text(plain), text(found), kReport);
  }
  return text(found) +
         (session.device().traits().emulates_fp8 ? ", near that of bf16; " : ", as on the CPU; ") +
         found.gemms;
}

}  // namespace

std::string check_step(runtime::Session& session) {
  std::string found;
  session.job().together([&] { found = compare_steps(session); });
  return found;
}

}  // namespace octet::verify
