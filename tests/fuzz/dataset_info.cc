#include "fuzz.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "scratch.h"

namespace octet::fuzz {

void dataset_info(std::string_view bytes) {
  static const std::string rows = scratch_file(
      "rows.jsonl", "{\"instruction\":\"q\",\"input\":\"\",\"output\":\"a\",\"history\":[[\"x\",\"y\"]]}\n");
  scratch_file("dataset_info.json", bytes);
  try {
    std::vector<std::string> names{"set"};
    const Json info = parse_json(bytes, "dataset_info.json");
    if (info.is_object()) {
      for (const auto& [name, entry] : info.items()) {
        // Nothing outside of the folder is opened.
        const auto file = entry.is_object() ? entry.find("file_name") : entry.end();
        if (!entry.is_object() || file == entry.end() || !file->is_string() || *file == "rows.jsonl") {
          names.push_back(name);
        }
      }
    }
    for (const auto& name : names) {
      try {
        for (const auto& source : data::open_datasets({.dataset = {name}, .dataset_dir = scratch_folder()})) {
          data::convert_row(source.files.front()->row(0), source.format, nullptr);
        }
      } catch (const Error&) {
      }
    }
  } catch (const Error&) {
  }
}

}  // namespace octet::fuzz
