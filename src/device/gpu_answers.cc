#include "octet/device/gpu_answers.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace octet {
namespace {

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

/// Returns the first driver for all versions of a CUDA major version (NVIDIA's table of minor version
/// compatibility).
std::string least_driver(int program) {
  if (program / 1000 == 13) return ", which needs driver 580 or newer";
  return program / 1000 == 12 ? ", which needs driver 525 or newer" : "";
}

/// Returns "8.9" for 89.
std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace

int code_for(const std::string& built_for, int capability) {
  int machine = 0, ptx = 0;
  std::istringstream words(built_for);
  for (std::string word; words >> word;) {
    const int number = std::stoi(word);
    const bool alone =
        std::isalpha(static_cast<unsigned char>(word[word.find_first_not_of("0123456789")])) != 0;
    if (word.ends_with("-virtual")) {
      if (alone ? number == capability : number <= capability) ptx = std::max(ptx, number);
    } else if (alone ? number == capability : number / 10 == capability / 10 && number <= capability) {
      machine = std::max(machine, number);
    }
  }
  return machine != 0 ? machine : ptx;
}

std::string why_no_fp8(const std::string& gpu, int capability) {
  if (capability >= kLeastFp8Capability) return {};
  return gpu + " has compute capability " + capability_text(capability) + ", but GEMMs in FP8 need " +
         capability_text(kLeastFp8Capability) + " (Ada, Hopper, Blackwell)";
}

std::string why_no_driver(const GpuAnswers& a) {
  if (a.driver == 0) return "no NVIDIA driver was found" + (a.others.empty() ? "" : "; " + a.others);
  // Drivers support all minor versions of their CUDA major version.
  if (a.driver / 1000 >= a.program / 1000) return {};
  return "the NVIDIA driver is too old: it supports CUDA " + version(a.driver) +
         ", and this program was built with CUDA " + version(a.program) + least_driver(a.program);
}

std::string why_not(const GpuAnswers& a) {
  if (std::string why = why_no_driver(a); !why.empty()) return why;
  if (!a.count_error.empty()) return "the NVIDIA driver does not answer: " + a.count_error;
  if (a.count == 0) return "the NVIDIA driver shows no GPU";
  const std::string gpu = "GPU " + std::to_string(a.ordinal);
  if (a.ordinal < 0 || a.ordinal >= a.count) {
    return "there is no " + gpu + ", the driver shows " + std::to_string(a.count);
  }
  if (!a.properties_error.empty()) return gpu + " does not answer: " + a.properties_error;
  const std::string has = gpu + " (" + a.name + ") has compute capability " + capability_text(a.capability);
  if (a.capability < kLeastCapability) {
    return has + ", and " + capability_text(kLeastCapability) + " (Ampere) or more is needed";
  }
  if (code_for(a.built_for, a.capability) >= kLeastCapability) return {};
  return has + ", and this program was built for " + a.built_for +
         " only (cmake -DOCTET_CUDA_ARCHITECTURES=" + std::to_string(a.capability) +
         "-real builds it for this GPU)";
}

GpuRefusalText text_of(GpuRefusal refusal, const std::string& gpu, const std::string& reason) {
  const std::string others =
      "end other programs on it (nvidia-smi shows them), choose another GPU with CUDA_VISIBLE_DEVICES, or "
      "set "
      "device: cpu";
  switch (refusal) {
    case GpuRefusal::full:
      return {gpu + " is too full: its memory has no room for the driver's own data", others};
    case GpuRefusal::taken:
      return {gpu + " is in exclusive use by another program, or is being reset", others};
    case GpuRefusal::other:
      break;
  }
  return {gpu + " cannot be opened: " + reason, "check it with nvidia-smi, or set device: cpu"};
}

}  // namespace octet
