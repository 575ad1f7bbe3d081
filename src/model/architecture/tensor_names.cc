#include <string>

#include "octet/model/architecture.h"

namespace octet::model {
namespace {

// Names of the text model in transformers 5, in transformers 4, and of a text model alone.
constexpr const char* kNewer = "model.language_model.";
constexpr const char* kOlder = "language_model.model.";
constexpr const char* kAlone = "model.";
constexpr const char* kHead = "lm_head.weight";

}  // namespace

void name_tensors(Architecture& a, const std::function<bool(const std::string&)>& exists) {
  if (!a.multimodal) return;
  const auto is_there = [&](const std::string& prefix) { return exists(prefix + "embed_tokens.weight"); };
  const std::string older_head = std::string("language_model.") + kHead;
  a.head_name = kHead;
  if (is_there(kOlder)) {
    a.tensor_prefix = kOlder;
    if (exists(older_head) || !exists(kHead)) a.head_name = older_head;
  } else if (is_there(kNewer)) {
    a.tensor_prefix = kNewer;
  } else if (is_there(kAlone)) {
    // Except for `unprefixed_text`, the weights hold only the text model, and config.json describes the
    // multimodal model.
    a.multimodal = a.unprefixed_text;
    a.tensor_prefix = kAlone;
  } else {
    a.tensor_prefix = a.unprefixed_text ? kNewer : kOlder;
    if (!a.unprefixed_text) a.head_name = older_head;
  }
}

Architecture named_as_modules(Architecture a) {
  if (!a.multimodal) return a;
  a.tensor_prefix = kNewer;
  a.head_name = kHead;
  return a;
}

std::vector<std::string> text_tensors(const Architecture& a) {
  if (!a.multimodal) return {};
  return {a.tensor_prefix, a.head_name};
}

std::vector<std::string> unread_tensors(const Architecture& a) {
  std::vector<std::string> names;
  for (std::int64_t i = a.layers; i < a.layers + a.further_blocks; ++i)
    names.push_back(a.tensor_prefix + "layers." + std::to_string(i) + ".");
  if (a.further_modules) names.emplace_back("mtp.");
  if (a.scores) names.emplace_back("lm_head.");
  return names;
}

}  // namespace octet::model
