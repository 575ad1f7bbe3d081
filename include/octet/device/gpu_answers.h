// A driver's answers about a GPU, and the messages for them. Separate from the driver calls, so that every
// build can test the messages.
#pragma once

#include <string>

namespace octet {

/// Answers of the driver. CUDA versions have CUDA's format: 13000 is 13.0.
struct GpuAnswers {
  int driver = 0;      ///< newest CUDA version that the driver supports; 0: no driver
  std::string others;  ///< without a driver: text about other makers' GPUs (amd_gpus_text()); or empty
  int program = 0;     ///< CUDA version that the program was built with
  int count = 0;       ///< GPUs that the driver shows
  std::string count_error;
  int ordinal = 0;  ///< the requested GPU
  std::string name;
  int capability = 0;  ///< 10 * major + minor
  std::string properties_error;
  /// Targets that the program's code was compiled for, separated by blanks: 90a-real (machine code),
  /// 80-virtual (PTX, which drivers compile).
  std::string built_for;
};

/// bf16 GEMMs, and copies concurrent with computation, need at least Ampere.
inline constexpr int kLeastCapability = 80;
/// FP8 GEMMs need at least Ada.
inline constexpr int kLeastFp8Capability = 89;

/// Returns the compute capability of the compiled code that a GPU runs, 10 * major + minor; 0 if there is
/// none. Machine code runs on GPUs of its major version with its minor version or a later one. With a letter
/// after the number, it runs on exactly this version. PTX runs on all later GPUs, and with a letter on
/// exactly its version.
int code_for(const std::string& built_for, int capability);

/// Returns why this GPU cannot multiply FP8, without a full stop; empty if it can. `gpu`: the driver's name.
std::string why_no_fp8(const std::string& gpu, int capability);

/// Returns why the driver cannot be used; empty if it can.
std::string why_no_driver(const GpuAnswers& answers);
/// Returns why the GPU cannot be used, driver problems first, without a full stop; empty if it can.
std::string why_not(const GpuAnswers& answers);

/// Why a usable GPU was not opened.
enum class GpuRefusal { full, taken, other };
/// The message and its fix.
struct GpuRefusalText {
  std::string what, fix;
};
/// `gpu`: "GPU 0 (NVIDIA H200)"; `reason`: the driver's message.
GpuRefusalText text_of(GpuRefusal refusal, const std::string& gpu, const std::string& reason);

}  // namespace octet
