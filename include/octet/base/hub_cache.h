// What Hugging Face's libraries have fetched to this machine: models and data sets by their names on the hub.
// Nothing is fetched here.
#pragma once

#include <functional>
#include <string>

namespace octet {

/// The text of an environment variable, "" where it is not set.
using VariableText = std::function<std::string(const char* name)>;

/// The folder of that cache: HF_HUB_CACHE or HUGGINGFACE_HUB_CACHE, else `hub` in HF_HOME, else
/// `huggingface/hub` in XDG_CACHE_HOME, else in `.cache` of HOME; "" where none of them is set.
std::string hub_folder(const VariableText& variable);
/// The same by the environment of this process.
std::string hub_folder();

enum class HubKind { model, dataset };

/// The folder of a snapshot in the cache `hub`: of a branch or tag as the cache last saw it, or of a commit.
/// "" where it is not there, and for names that are none of the hub's ("name" or "owner/name").
std::string hub_snapshot(const std::string& hub, HubKind kind, const std::string& name,
                         const std::string& revision = "main");

}  // namespace octet
