// What a driver answers about a GPU, and what that means in plain words: apart from the calls, so that every
// build can test the words.
#pragma once

#include <string>

namespace octet {

/// Versions as CUDA counts them: 13000 is 13.0.
struct GpuAnswers {
  int driver = 0;   ///< that the driver knows; 0: no driver
  int program = 0;  ///< that the program was built with
  int count = 0;    ///< GPUs that the driver shows
  std::string count_error;
  int ordinal = 0;  ///< the GPU that is asked for
  std::string name;
  int capability = 0;  ///< 10 * major + minor
  std::string properties_error;
};

/// FP8 products and the program's machine code begin with Hopper.
inline constexpr int kLeastCapability = 90;

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
