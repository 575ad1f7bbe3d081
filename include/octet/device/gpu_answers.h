// What a driver answers about a GPU, and what that means in plain words: apart from the calls, so that every
// build can test the words.
#pragma once

#include <string>

namespace octet {

/// Versions as CUDA counts them: 13000 is 13.0.
struct GpuAnswers {
  int driver = 0;      ///< that the driver knows; 0: no driver
  std::string others;  ///< without one: what is said of other makers' GPUs (amd_gpus_text()); empty: nothing
  int program = 0;     ///< that the program was built with
  int count = 0;       ///< GPUs that the driver shows
  std::string count_error;
  int ordinal = 0;  ///< the GPU that is asked for
  std::string name;
  int capability = 0;  ///< 10 * major + minor
  std::string properties_error;
  /// What the program's code was compiled for: words like 90a-real (machine code) and 80-virtual (PTX, which
  /// drivers compile), between blanks.
  std::string built_for;
};

/// GEMMs in bf16 and copies beside computing begin with Ampere.
inline constexpr int kLeastCapability = 80;
/// GEMMs in FP8 begin with Ada.
inline constexpr int kLeastFp8Capability = 89;

/// The compute capability for which the code was compiled that a GPU runs, 10 * major + minor; 0 where there
/// is none for it. Machine code runs on GPUs of its major version and of its minor one or a later; with a
/// letter behind the number on that one alone. PTX runs on all later ones.
int code_for(const std::string& built_for, int capability);

/// Why this GPU does not multiply FP8; empty when it does. Without a full stop. `gpu` as the driver calls it.
std::string why_no_fp8(const std::string& gpu, int capability);

/// Why the driver cannot be used; empty when it can.
std::string why_no_driver(const GpuAnswers& answers);
/// Why the GPU cannot be used, beginning with the driver; empty when it can. Without a full stop.
std::string why_not(const GpuAnswers& answers);

/// Why a GPU that could be used was not opened.
enum class GpuRefusal { full, taken, other };
/// The sentence, and what to do about it.
struct GpuRefusalText {
  std::string what, fix;
};
/// `gpu`: "GPU 0 (NVIDIA H200)"; `reason`: the driver's own words.
GpuRefusalText text_of(GpuRefusal refusal, const std::string& gpu, const std::string& reason);

}  // namespace octet
