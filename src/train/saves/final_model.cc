#include "octet/train/final_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/model_file.h"
#include "octet/checkpoint/export.h"
#include "octet/runtime/model_folder.h"

namespace octet::train {
namespace {

constexpr auto kReplaced = Json::error_handler_t::replace;  ///< for bytes in a file that are not UTF-8

// Returns the end tokens. If the model was trained to end answers with the template's token, inference must
// stop at it. The end tokens of the base follow. They are in its generation_config.json, else, like in
// transformers, in its config.json.
Json ends_of(const std::string& model, const data::TemplateEncoder& encoder) {
  // Some readers use only the first, so it is the tokenizer's end token.
  std::vector<std::int32_t> stops = encoder.stop_ids();
  std::ranges::stable_partition(stops, [&](std::int32_t id) { return id == encoder.tokenizer().eos_id(); });
  std::vector<std::int32_t> base =
      token_ids(read_model_file(model, "generation_config.json"), "eos_token_id");
  if (base.empty()) base = token_ids(read_model_file(model, "config.json"), "eos_token_id");
  for (const std::int32_t id : base) {
    if (std::ranges::find(stops, id) == stops.end()) stops.push_back(id);
  }
  return stops;
}

Json one_or_all(const Json& ends) {
  return ends.size() == 1 ? ends[0] : ends;
}

std::string generation_config(const std::string& model, const data::TemplateEncoder& encoder) {
  Json config = read_model_file(model, "generation_config.json");
  const Json ends = ends_of(model, encoder);
  if (!ends.empty()) config["eos_token_id"] = one_or_all(ends);
  const text::Tokenizer& tokenizer = encoder.tokenizer();
  if (tokenizer.bos_id() >= 0 && !config.contains("bos_token_id"))
    config["bos_token_id"] = tokenizer.bos_id();
  if (tokenizer.pad_id() >= 0) config["pad_token_id"] = tokenizer.pad_id();
  return config.dump(2) + "\n";
}

// Replaces a pad token that differs from the tokenizer's. The embedding row of a pad token is not trained. So
// an end token, which some tokenizers use for padding, does not become the pad token.
void fit_pad(Json& part, std::int32_t pad, const Json& ends) {
  const auto found = part.find("pad_token_id");
  if (pad < 0 || found == part.end() || !found->is_number_integer() || *found == pad) return;
  *found = std::ranges::find(ends, Json(pad)) == ends.end() ? Json(pad) : Json();
}

/// Sets the end tokens of the folder's config.json to the end tokens of generation_config.json.
void fit_config(const std::string& path, const std::string& model, const data::TemplateEncoder& encoder) {
  if (!path_exists(path)) return;
  const Json before = read_json(path);
  Json config = before;
  const Json ends = ends_of(model, encoder);
  if (!ends.empty()) config["eos_token_id"] = one_or_all(ends);
  const std::int32_t pad = encoder.tokenizer().pad_id();
  fit_pad(config, pad, ends);
  if (const auto text = config.find("text_config"); text != config.end() && text->is_object()) {
    if (!ends.empty() && text->contains("eos_token_id")) (*text)["eos_token_id"] = one_or_all(ends);
    fit_pad(*text, pad, ends);
  }
  if (config != before) write_file_atomically(path, config.dump(2, ' ', false, kReplaced) + "\n");
}

/// Sets model_max_length, at which transformers truncates texts.
void fit_length(const std::string& path, std::int64_t positions) {
  if (positions <= 0 || !path_exists(path)) return;
  Json config = read_json(path);
  const auto found = config.find("model_max_length");
  // If it is missing, transformers assumes no limit.
  const bool fits =
      found != config.end() && found->is_number() && found->get<double>() <= static_cast<double>(positions);
  if (fits) return;
  config["model_max_length"] = positions;
  write_file_atomically(path, config.dump(2, ' ', false, kReplaced) + "\n");
}

}  // namespace

std::int64_t most_positions(const model::Architecture& architecture) {
  double most = static_cast<double>(architecture.max_positions);
  for (const model::Rope& rope : architecture.ropes) {
    if (rope.kind != model::RopeKind::yarn) continue;
    most = std::max(most, static_cast<double>(rope.original_max_positions) * rope.factor);
  }
  return static_cast<std::int64_t>(std::min(most, 1e15));
}

void save_tokenizer(const std::string& folder, const data::TemplateEncoder& encoder, std::int64_t positions) {
  encoder.tokenizer().save(folder);
  const std::string path = folder + "/tokenizer_config.json";
  fit_length(path, positions);
  const std::optional<std::string> jinja = encoder.jinja_for(folder);
  if (!jinja) return;
  // Readers use different places for the template, so the other places are removed.
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
  const bool described = path_exists(model + "/config.json");
  save_tokenizer(folder, encoder, described ? most_positions(runtime::read_model(model)) : 0);
  write_file_atomically(folder + "/generation_config.json", generation_config(model, encoder));
  fit_config(folder + "/config.json", model, encoder);
}

std::vector<std::string> export_model(const ModelExport& e, const data::TemplateEncoder* encoder) {
  checkpoint::ExportOptions options;
  options.folder = e.folder;
  options.source_folder = e.model;
  options.dtype = e.dtype;
  options.shard_bytes = e.shard_bytes;
  options.overwrite = e.overwrite;
  options.rest_from_source = e.part;
  if (path_exists(e.model + "/config.json")) options.tied = runtime::read_model(e.model).tied;
  if (encoder != nullptr)
    options.complete = [&](const std::string& folder) { write_tokenizer(folder, e.model, *encoder); };
  std::vector<std::string> files = checkpoint::export_checkpoint(options, e.checkpoint);
  if (encoder != nullptr && std::ranges::find(files, "generation_config.json") == files.end())
    files.push_back("generation_config.json");
  return files;
}

}  // namespace octet::train
