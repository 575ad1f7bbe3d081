#include "octet/checkpoint/manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <optional>
#include <unordered_set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/files/file_io.h"

namespace octet::checkpoint {
namespace {

constexpr std::string_view kHashPrefix = "{\"hash\":\"";
constexpr std::string_view kSuffix = "\",\n";
constexpr std::size_t kHashDigits = 32;

[[noreturn]] void damaged_manifest(const std::string& path, const std::string& what,
                                   const std::string& expected = "", const std::string& found = "") {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = path,
               .fix = "this checkpoint cannot be used: take an older one",
               .code = ExitCode::no_valid_checkpoint});
}

void append_hex(std::string& text, std::uint64_t value) {
  constexpr char digits[] = "0123456789abcdef";
  for (int shift = 60; shift >= 0; shift -= 4) text += digits[(value >> shift) & 15u];
}

std::optional<DType> dtype_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// Returns a required member.
const Json& member(const Json& object, const char* key, const std::string& path) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || it == object.end() || it->is_null())
    damaged_manifest(path, std::string("the manifest lacks '") + key + "'");
  return *it;
}

std::int64_t whole(const Json& object, const char* key, const std::string& path) {
  member(object, key, path);
  return json_int(object, key, 0, 0, INT64_MAX, path);
}

std::string text_of(const Json& object, const char* key, const std::string& path) {
  member(object, key, path);
  return json_string(object, key, "", path);
}

void check_range(std::int64_t offset, std::int64_t bytes, std::int64_t file_bytes, const std::string& what,
                 const std::string& path) {
  if (offset > file_bytes || bytes > file_bytes - offset)
    damaged_manifest(path, "the manifest places " + what + " outside the file");
}

TextBlock text_block(const Json& object, const char* key, std::int64_t file_bytes, const std::string& path) {
  const Json& block = member(object, key, path);
  TextBlock result{whole(block, "offset", path), whole(block, "bytes", path), text_of(block, "hash", path)};
  check_range(result.offset, result.bytes, file_bytes, key, path);
  return result;
}

CheckpointTensor tensor_of(const Json& entry, std::int64_t file_bytes, const std::string& path) {
  CheckpointTensor tensor;
  tensor.name = text_of(entry, "name", path);
  const std::string dtype = text_of(entry, "dtype", path);
  const auto known = dtype_named(dtype);
  if (!known) damaged_manifest(path, "dtype of tensor '" + tensor.name + "' is not known", "", dtype);
  tensor.dtype = *known;
  const Json& shape = member(entry, "shape", path);
  if (!shape.is_array()) damaged_manifest(path, "shape of tensor '" + tensor.name + "' is not a list");
  for (const Json& extent : shape) {
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
      damaged_manifest(path, "shape of tensor '" + tensor.name + "' is impossible", "", extent.dump());
    tensor.shape.push_back(extent.get<std::int64_t>());
  }
  tensor.bytes = weights::byte_count(tensor);
  tensor.offset = whole(entry, "offset", path);
  check_range(tensor.offset, tensor.bytes, file_bytes, "tensor '" + tensor.name + "'", path);
  const std::string chunks = text_of(entry, "chunks", path);
  if (static_cast<std::int64_t>(chunks.size()) != 16 * chunk_count(tensor.bytes))
    damaged_manifest(path, "tensor '" + tensor.name + "' has the wrong number of chunk hashes");
  for (std::size_t i = 0; i < chunks.size(); i += 16) {
    std::uint64_t value = 0;
    const char* end = chunks.data() + i + 16;
    if (std::from_chars(chunks.data() + i, end, value, 16).ptr != end)
      damaged_manifest(path, "a chunk hash of tensor '" + tensor.name + "' is not hexadecimal");
    tensor.chunks.push_back(value);
  }
  tensor.hash = text_of(entry, "hash", path);
  if (tensor.hash != content_hash(tensor, tensor.chunks))
    damaged_manifest(path, "the hashes of tensor '" + tensor.name + "' disagree");
  return tensor;
}

}  // namespace

std::string content_hash(const weights::TensorHeader& tensor, const std::vector<std::uint64_t>& chunks) {
  std::string text = std::string(name_of(tensor.dtype)) + weights::shape_text(tensor.shape);
  for (const std::uint64_t chunk : chunks) append_hex(text, chunk);
  return hash128_hex(text);
}

std::string manifest_text(const Manifest& manifest) {
  const auto block = [](const TextBlock& text) {
    return Json{{"offset", text.offset}, {"bytes", text.bytes}, {"hash", text.hash}};
  };
  Json json;
  json["format"] = "octet checkpoint";
  json["version"] = kFormatVersion;
  json["step"] = manifest.step;
  json["world"] = manifest.world;
  json["zero_stage"] = manifest.zero_stage;
  json["file"] = {
      {"name", manifest.file}, {"bytes", manifest.file_bytes}, {"layout_hash", manifest.layout_hash}};
  json["chunk_bytes"] = kChunkBytes;
  json["state"] = block(manifest.state);
  json["config"] = block(manifest.config);
  json["tensors"] = Json::array();
  for (const auto& tensor : manifest.tensors) {
    std::string chunks;
    for (const std::uint64_t chunk : tensor.chunks) append_hex(chunks, chunk);
    Json entry;
    entry["name"] = tensor.name;
    entry["dtype"] = name_of(tensor.dtype);
    entry["shape"] = tensor.shape;
    entry["offset"] = tensor.offset;
    entry["hash"] = tensor.hash;
    entry["chunks"] = std::move(chunks);
    json["tensors"].push_back(std::move(entry));
  }
  const std::string body = json.dump(1).substr(1) + "\n";
  return std::string(kHashPrefix) + hash128_hex(body) + std::string(kSuffix) + body;
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  const std::size_t start = kHashPrefix.size() + kHashDigits + kSuffix.size();
  if (text.size() < start || text.substr(0, kHashPrefix.size()) != kHashPrefix ||
      text.substr(start - kSuffix.size(), kSuffix.size()) != kSuffix) {
    damaged_manifest(path, "the manifest does not start with its hash");
  }
  const std::string claimed(text.substr(kHashPrefix.size(), kHashDigits));
  const std::string actual = hash128_hex(text.substr(start));
  if (claimed != actual)
    damaged_manifest(path, "the manifest is damaged: its hash does not match", claimed, actual);

  const Json json = parse_json(text, path, false, 8);
  if (text_of(json, "format", path) != "octet checkpoint")
    damaged_manifest(path, "this is not the manifest of a checkpoint");
  const std::int64_t version = whole(json, "version", path);
  if (version != kFormatVersion)
    damaged_manifest(path, "the checkpoint has another format version", std::to_string(kFormatVersion),
                     std::to_string(version));
  if (whole(json, "chunk_bytes", path) != kChunkBytes)
    damaged_manifest(path, "the checkpoint has another chunk size");
  Manifest manifest;
  manifest.step = whole(json, "step", path);
  manifest.world = static_cast<int>(json_int(json, "world", 1, 1, INT32_MAX, path));
  manifest.zero_stage = static_cast<int>(json_int(json, "zero_stage", 0, 0, 3, path));
  const Json& file = member(json, "file", path);
  manifest.file = text_of(file, "name", path);
  if (manifest.file != kDataName)
    damaged_manifest(path, "the manifest names another data file", kDataName, manifest.file);
  manifest.file_bytes = whole(file, "bytes", path);
  manifest.layout_hash = text_of(file, "layout_hash", path);
  manifest.state = text_block(json, "state", manifest.file_bytes, path);
  manifest.config = text_block(json, "config", manifest.file_bytes, path);
  const Json& tensors = member(json, "tensors", path);
  if (!tensors.is_array()) damaged_manifest(path, "the manifest's tensors are not a list");
  std::unordered_set<std::string> names;
  for (const Json& entry : tensors) {
    manifest.tensors.push_back(tensor_of(entry, manifest.file_bytes, path));
    const auto& name = manifest.tensors.back().name;
    if (!names.insert(name).second) damaged_manifest(path, "the manifest lists tensor '" + name + "' twice");
  }
  return manifest;
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  std::error_code none;
  const auto data_bytes = std::filesystem::file_size(folder + "/" + kDataName, none);
  // The limit allows 16 digits per 1 MiB chunk, and a few hundred characters per tensor.
  constexpr std::int64_t kTensors = 64 << 20;
  const std::int64_t most =
      kTensors +
      (none ? 0 : static_cast<std::int64_t>(std::min<std::uintmax_t>(data_bytes, INT64_MAX / 2)) / 1024);
  std::string text;
  try {
    text = read_regular_file(path, most);
  } catch (const Error& error) {
    damaged_manifest(path, "the manifest cannot be read: " + error.problem().what, error.problem().expected,
                     error.problem().found);
  }
  return parse_manifest(text, path);
}

std::string hash_layout(int fd, const std::string& path, const Manifest& manifest) {
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;  // [begin, end)
  const auto take = [&taken](std::int64_t offset, std::int64_t bytes) {
    if (bytes > 0) taken.emplace_back(offset, offset + bytes);
  };
  take(manifest.state.offset, manifest.state.bytes);
  take(manifest.config.offset, manifest.config.bytes);
  for (const auto& tensor : manifest.tensors) take(tensor.offset, tensor.bytes);
  taken.emplace_back(manifest.file_bytes, manifest.file_bytes);
  std::sort(taken.begin(), taken.end());

  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_128bits_reset(state.get());
  std::vector<char> buffer(1 << 16);
  std::int64_t at = 0;
  for (const auto& [begin, end] : taken) {
    while (at < begin) {
      const auto n = std::min<std::int64_t>(begin - at, static_cast<std::int64_t>(buffer.size()));
      files::read_at(fd, path, buffer.data(), n, at);
      XXH3_128bits_update(state.get(), buffer.data(), static_cast<std::size_t>(n));
      at += n;
    }
    at = std::max(at, end);
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  std::string text;
  append_hex(text, hash.high64);
  append_hex(text, hash.low64);
  return text;
}

}  // namespace octet::checkpoint
