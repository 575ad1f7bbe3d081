#include "octet/train/final_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/checkpoint/export.h"

namespace octet::train {
namespace {

// A model that was trained to end its answers with the template's token must be told to stop at it, or it
// talks on: the source's generation_config.json, if any, with the end tokens of the template in front.
std::string generation_config(const std::string& model, const data::TemplateEncoder& encoder) {
  const std::string path = model + "/generation_config.json";
  Json config = path_exists(path) ? read_json(path) : Json::object();
  Json ends = Json::array();
  for (const std::int32_t id : encoder.stop_ids()) ends.push_back(id);
  if (const auto old = config.find("eos_token_id"); old != config.end()) {
    for (const Json& id : old->is_array() ? *old : Json::array({*old})) {
      if (id.is_number_integer() && std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
    }
  }
  if (!ends.empty()) config["eos_token_id"] = ends.size() == 1 ? ends[0] : ends;
  const text::Tokenizer& tokenizer = encoder.tokenizer();
  if (tokenizer.bos_id() >= 0 && !config.contains("bos_token_id"))
    config["bos_token_id"] = tokenizer.bos_id();
  if (tokenizer.pad_id() >= 0) config["pad_token_id"] = tokenizer.pad_id();
  return config.dump(2) + "\n";
}

}  // namespace

void save_tokenizer(const std::string& folder, const data::TemplateEncoder& encoder) {
  encoder.tokenizer().save(folder);
  const std::optional<std::string> jinja = encoder.jinja_for(folder);
  if (!jinja) return;
  // Of several places readers take different ones: the others go.
  const std::string path = folder + "/tokenizer_config.json";
  if (path_exists(path)) {
    Json config = read_json(path);
    if (config.erase("chat_template") > 0) write_file_atomically(path, config.dump(2) + "\n");
  }
  std::error_code ignored;
  std::filesystem::remove(folder + "/chat_template.json", ignored);
  write_file_atomically(folder + "/chat_template.jinja", *jinja);
}

void write_tokenizer(const std::string& folder, const std::string& model,
                     const data::TemplateEncoder& encoder) {
  save_tokenizer(folder, encoder);
  write_file_atomically(folder + "/generation_config.json", generation_config(model, encoder));
}

std::vector<std::string> export_model(const ModelExport& e, const data::TemplateEncoder* encoder) {
  checkpoint::ExportOptions options;
  options.folder = e.folder;
  options.source_folder = e.model;
  options.dtype = e.dtype;
  options.shard_bytes = e.shard_bytes;
  options.overwrite = e.overwrite;
  options.rest_from_source = e.part;
  if (encoder != nullptr)
    options.complete = [&](const std::string& folder) { write_tokenizer(folder, e.model, *encoder); };
  std::vector<std::string> files = checkpoint::export_checkpoint(options, e.checkpoint);
  if (encoder != nullptr && std::ranges::find(files, "generation_config.json") == files.end())
    files.push_back("generation_config.json");
  return files;
}

}  // namespace octet::train
