#include "octet/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/manifest.h"
#include "octet/files/file_io.h"
#include "octet/weights/convert.h"
#include "outline.h"

namespace octet::checkpoint {
namespace {

constexpr const char* kTakeAnother = "this checkpoint cannot be used: take an older one";

[[noreturn]] void damaged_checkpoint(const std::string& what, const std::string& where,
                                     const std::string& expected = "", const std::string& found = "") {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = where,
               .fix = kTakeAnother,
               .code = ExitCode::no_valid_checkpoint});
}

}  // namespace

Checkpoint::Checkpoint(const std::string& path) : path_(path), data_path_(path + "/" + kDataName) {
  const std::string manifest_path = path + "/" + kManifestName;
  if (!path_exists(manifest_path)) {
    throw Error({.what = "this is not a complete checkpoint",
                 .expected = std::string(kManifestName) + " and " + kDataName,
                 .found = path_exists(path) ? "no manifest" : "no such folder",
                 .where = path,
                 .fix = "name a folder checkpoint-<step>",
                 .code = ExitCode::no_valid_checkpoint});
  }
  manifest_ = read_manifest(path);
  try {
    open_data();
  } catch (const Error& e) {
    if (e.code() != ExitCode::usage) throw;
    // A missing or unreadable data file is a damaged checkpoint, not a usage error of the command.
    Problem problem = e.problem();
    problem.code = ExitCode::no_valid_checkpoint;
    problem.fix = kTakeAnother;
    throw Error(problem);
  }
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) by_name_[manifest_.tensors[i].name] = i;
}

void Checkpoint::open_data() {
  // Opening a pipe instead of a file must not block until a writer opens it.
  files::Descriptor file = files::open_file(data_path_, O_RDONLY | O_NONBLOCK);
  struct stat st {};
  if (::fstat(file.get(), &st) != 0) files::file_error("cannot read a file", data_path_, errno);
  if (!S_ISREG(st.st_mode)) damaged_checkpoint("a checkpoint's data file is not a regular file", data_path_);
  if (st.st_size != manifest_.file_bytes) {
    damaged_checkpoint("a checkpoint's data file has the wrong size", data_path_,
                       std::to_string(manifest_.file_bytes) + " bytes",
                       std::to_string(st.st_size) + " bytes");
  }
  const std::string layout = hash_layout(file.get(), data_path_, manifest_);
  if (layout != manifest_.layout_hash)
    damaged_checkpoint("the HDF5 metadata of a checkpoint is damaged", data_path_, manifest_.layout_hash,
                       layout);
  fd_ = file.get();
  config_yaml_ = without_filling(read_text(manifest_.config, "config"));
  state_ = parse_json(read_text(manifest_.state, "state"), data_path_ + ", /state");
  file.release();
}

Checkpoint::Checkpoint(std::shared_ptr<SharedState> state)
    : path_(state->words()), data_path_(path_), memory_(std::move(state)) {
  manifest_ = memory_->manifest();
  config_yaml_ = memory_->config_yaml();
  state_ = parse_json(memory_->state(), path_ + ", state");
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) by_name_[manifest_.tensors[i].name] = i;
}

void Checkpoint::close_memory() {
  if (memory_) memory_->close();
}

Checkpoint::~Checkpoint() {
  if (fd_ >= 0) ::close(fd_);
}

Checkpoint::Checkpoint(Checkpoint&& other) noexcept
    : path_(std::move(other.path_)),
      data_path_(std::move(other.data_path_)),
      fd_(std::exchange(other.fd_, -1)),
      memory_(std::move(other.memory_)),
      manifest_(std::move(other.manifest_)),
      state_(std::move(other.state_)),
      config_yaml_(std::move(other.config_yaml_)),
      by_name_(std::move(other.by_name_)) {}

Checkpoint& Checkpoint::operator=(Checkpoint&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_path_, other.data_path_);
  std::swap(fd_, other.fd_);
  std::swap(memory_, other.memory_);
  std::swap(manifest_, other.manifest_);
  std::swap(state_, other.state_);
  std::swap(config_yaml_, other.config_yaml_);
  std::swap(by_name_, other.by_name_);
  return *this;
}

std::string Checkpoint::read_text(const TextBlock& block, const char* what) const {
  std::string text(static_cast<std::size_t>(block.bytes), '\0');
  read_bytes(block.offset, text.data(), block.bytes);
  const std::string hash = hash128_hex(text);
  if (hash != block.hash)
    damaged_checkpoint(std::string("/") + what + " of a checkpoint is damaged", data_path_, block.hash, hash);
  return text;
}

const CheckpointTensor* Checkpoint::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &manifest_.tensors[it->second];
}

const CheckpointTensor& Checkpoint::at(const std::string& name) const {
  if (const CheckpointTensor* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const auto& tensor : manifest_.tensors) names.push_back(tensor.name);
  const std::string near = nearest_name(name, names);
  throw Error({.what = "tensor '" + name + "' is not in the checkpoint",
               .found = std::to_string(names.size()) + " other tensors" +
                        (near.empty() ? "" : ", the nearest is '" + near + "'"),
               .where = path_,
               .fix = "resume with the model and the optimizer that wrote the checkpoint",
               .code = ExitCode::usage});
}

void Checkpoint::read_bytes(std::int64_t offset, void* out, std::int64_t bytes) const {
  check(!memory_, "a checkpoint in memory is read by all ranks together");
  files::read_at(fd_, data_path_, out, bytes, offset);
}

void Checkpoint::read_chunk(const CheckpointTensor& tensor, std::int64_t chunk, std::byte* out,
                            bool verify) const {
  const std::int64_t begin = chunk * kChunkBytes;
  const std::int64_t bytes = std::min(kChunkBytes, tensor.bytes - begin);
  read_bytes(tensor.offset + begin, out, bytes);
  if (!verify) return;
  const std::uint64_t hash = hash64({reinterpret_cast<const char*>(out), static_cast<std::size_t>(bytes)});
  if (hash != tensor.chunks[static_cast<std::size_t>(chunk)]) {
    damaged_checkpoint("the data of a checkpoint are damaged: a hash does not match",
                       data_path_ + ", tensor '" + tensor.name + "', bytes " + std::to_string(begin) +
                           " to " + std::to_string(begin + bytes) + " (at " +
                           std::to_string(tensor.offset + begin) + " in the file)");
  }
}

const CheckpointTensor& Checkpoint::require_fit(const TensorSlice& slice) const {
  const CheckpointTensor& tensor = at(slice.name);
  const std::string where = path_ + ", tensor '" + slice.name + "'";
  if (slice.shape != tensor.shape) {
    throw Error({.what = "a tensor of the checkpoint has another shape",
                 .expected = weights::shape_text(slice.shape),
                 .found = weights::shape_text(tensor.shape),
                 .where = where,
                 .fix = "resume with the model that wrote the checkpoint",
                 .code = ExitCode::usage});
  }
  check_inside(slice);
  if (slice.dtype != tensor.dtype && !(weights::is_float(slice.dtype) && weights::is_float(tensor.dtype))) {
    throw Error({.what = "a tensor of the checkpoint has another kind of dtype",
                 .expected = std::string(name_of(slice.dtype)),
                 .found = std::string(name_of(tensor.dtype)),
                 .where = where,
                 .fix = "resume with the dtypes of the checkpoint, or export its weights (trainer export) "
                        "and train them in another output_dir",
                 .code = ExitCode::usage});
  }
  return tensor;
}

void Checkpoint::read(const std::vector<TensorSlice>& slices, bool verify) const {
  std::vector<std::byte> buffer(static_cast<std::size_t>(kChunkBytes));
  std::vector<float> floats;
  // Keeps the last chunk, because neighbouring slices often share one.
  const CheckpointTensor* held = nullptr;
  std::int64_t held_chunk = -1;
  for (const auto& slice : slices) {
    const CheckpointTensor& tensor = require_fit(slice);
    const bool same = slice.dtype == tensor.dtype;
    const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
    each_run(slice, [&](std::int64_t first_element, std::int64_t run_elements, void* to) {
      auto* out = static_cast<std::byte*>(to);
      const std::int64_t end = (first_element + run_elements) * width;
      for (std::int64_t at_byte = first_element * width; at_byte < end;) {
        const std::int64_t chunk = at_byte / kChunkBytes;
        const std::int64_t chunk_begin = chunk * kChunkBytes;
        const std::int64_t chunk_end = std::min(chunk_begin + kChunkBytes, tensor.bytes);
        const std::int64_t stop = std::min(end, chunk_end);
        if (same && at_byte == chunk_begin && stop == chunk_end) {
          read_chunk(tensor, chunk, out, verify);
          out += stop - at_byte;
          at_byte = stop;
          continue;
        }
        if (held != &tensor || held_chunk != chunk) {
          held = nullptr;
          read_chunk(tensor, chunk, buffer.data(), verify);
          held = &tensor;
          held_chunk = chunk;
        }
        const std::byte* from = buffer.data() + (at_byte - chunk_begin);
        const std::int64_t elements = (stop - at_byte) / width;
        if (same) {
          std::memcpy(out, from, static_cast<std::size_t>(stop - at_byte));
        } else {
          floats.resize(static_cast<std::size_t>(elements));
          weights::to_float(tensor.dtype, from, elements, floats.data());
          weights::from_float(slice.dtype, floats.data(), elements, out);
        }
        out += elements * static_cast<std::int64_t>(size_of(slice.dtype));
        at_byte = stop;
      }
    });
  }
}

void Checkpoint::read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const {
  read({TensorSlice{.name = name,
                    .dtype = DType::f32,
                    .shape = at(name).shape,
                    .begin = begin,
                    .count = count,
                    .data = out}});
}

void Checkpoint::verify(int share, int shares) const {
  std::vector<std::byte> buffer(static_cast<std::size_t>(kChunkBytes));
  std::int64_t turn = 0;
  for (const auto& tensor : manifest_.tensors) {
    for (std::int64_t chunk = 0; chunk < chunk_count(tensor.bytes); ++chunk) {
      if (turn++ % shares == share) read_chunk(tensor, chunk, buffer.data(), true);
    }
  }
}

void Checkpoint::verify(const CheckpointTensor& tensor) const {
  if (memory_) return;  // verified as a whole before
  std::vector<std::byte> buffer(static_cast<std::size_t>(kChunkBytes));
  for (std::int64_t chunk = 0; chunk < chunk_count(tensor.bytes); ++chunk)
    read_chunk(tensor, chunk, buffer.data(), true);
}

namespace {

// Bytes that a rank reads at a time, and the number of readers per round. Their product bounds the memory of
// the received bytes.
constexpr std::int64_t kPartBytes = 2 * kChunkBytes;
constexpr int kReaders = 8;

std::int64_t bytes_of(const TensorSlice& slice) {
  return slice.elements() * static_cast<std::int64_t>(size_of(slice.dtype));
}

// Returns a hash of the slices that a rank needs, without their addresses.
std::string description_of(const std::vector<TensorSlice>& slices) {
  std::string text;
  const auto number = [&text](std::int64_t value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const TensorSlice& slice : slices) {
    number(static_cast<std::int64_t>(slice.name.size()));
    text += slice.name;
    number(static_cast<std::int64_t>(slice.dtype));
    number(static_cast<std::int64_t>(slice.shape.size()));
    for (const std::int64_t extent : slice.shape) number(extent);
    for (const std::int64_t value :
         {slice.begin, slice.count, slice.rows, slice.one_run() ? 0 : slice.stride})
      number(value);
  }
  return hash128_hex(text);
}

// Splits the runs into parts of at most kPartBytes (or of one chunk, if its converted values are larger).
// Parts are cut at chunk boundaries of the file, so that no chunk is read twice.
std::vector<std::vector<TensorSlice>> parts_of(const Checkpoint& checkpoint,
                                               const std::vector<TensorSlice>& slices) {
  std::vector<std::vector<TensorSlice>> parts(1);
  std::int64_t filled = 0;
  for (const TensorSlice& slice : slices) {
    const CheckpointTensor* stored = checkpoint.find(slice.name);
    const DType dtype = stored == nullptr ? slice.dtype : stored->dtype;
    const std::int64_t chunk = kChunkBytes / static_cast<std::int64_t>(size_of(dtype));
    each_run(slice, [&](std::int64_t first, std::int64_t count, void* data) {
      const std::int64_t end = first + count;
      for (std::int64_t at = first; at < end || count == 0;) {
        TensorSlice piece = slice;
        piece.begin = at;
        piece.count = std::min(end, (at / chunk + 1) * chunk) - at;
        piece.data =
            static_cast<std::byte*>(data) + (at - first) * static_cast<std::int64_t>(size_of(slice.dtype));
        piece.rows = 1, piece.stride = piece.pitch = 0;
        const std::int64_t bytes = bytes_of(piece);
        if (filled > 0 && filled + bytes > kPartBytes) {
          parts.emplace_back();
          filled = 0;
        }
        at += piece.count;
        filled += bytes;
        parts.back().push_back(std::move(piece));
        if (count == 0) break;
      }
    });
  }
  return parts;
}

void read_own(const Checkpoint& checkpoint, const std::vector<TensorSlice>& slices) {
  try {
    checkpoint.read(slices);
  } catch (const Error& e) {
    if (e.code() == ExitCode::usage) throw;
    Problem problem = e.problem();
    problem.code = ExitCode::no_valid_checkpoint;
    throw Error(std::move(problem));
  }
}

std::string packed(const std::vector<TensorSlice>& part) {
  std::string bytes;
  for (const TensorSlice& slice : part)
    bytes.append(static_cast<const char*>(slice.data), static_cast<std::size_t>(bytes_of(slice)));
  return bytes;
}

void unpack(const std::string& bytes, const std::vector<TensorSlice>& part) {
  std::size_t at = 0;
  for (const TensorSlice& slice : part) {
    const auto count = static_cast<std::size_t>(bytes_of(slice));
    check(count <= bytes.size() - at, "a part of a checkpoint has the bytes of its slices");
    if (count > 0) std::memcpy(slice.data, bytes.data() + at, count);
    at += count;
  }
  check(at == bytes.size(), "a part of a checkpoint has no other bytes");
}

// One round: each of the first ranks reads a part, and all ranks receive all parts.
void read_round(comm::Channel& channel, const Checkpoint& checkpoint,
                std::span<const std::vector<TensorSlice>> parts) {
  const auto mine = static_cast<std::size_t>(channel.rank());
  std::string bytes;
  channel.together([&] {
    if (mine >= parts.size()) return;
    read_own(checkpoint, parts[mine]);
    bytes = packed(parts[mine]);
  });
  const std::vector<std::string> all = channel.all_gather_bytes(bytes);
  for (std::size_t reader = 0; reader < parts.size(); ++reader) {
    if (reader != mine) unpack(all[reader], parts[reader]);
  }
}

}  // namespace

void read_together(comm::Channel& channel, const Checkpoint& checkpoint,
                   const std::vector<TensorSlice>& slices) {
  if (const SharedState* memory = checkpoint.memory()) {
    channel.together([&] {
      for (const TensorSlice& slice : slices) checkpoint.require_fit(slice);
    });
    return memory->read(channel, slices);
  }
  if (channel.place().nodes == 1) {
    channel.together([&] { read_own(checkpoint, slices); });
    return;
  }
  const std::vector<std::string> asked = channel.all_gather_bytes(description_of(slices));
  const bool same =
      std::ranges::all_of(asked, [&](const std::string& other) { return other == asked.front(); });
  if (!same) {
    channel.together([&] { read_own(checkpoint, slices); });
    return;
  }
  const std::vector<std::vector<TensorSlice>> parts = parts_of(checkpoint, slices);
  const auto readers = static_cast<std::size_t>(std::min(channel.size(), kReaders));
  for (std::size_t first = 0; first < parts.size(); first += readers) {
    read_round(channel, checkpoint, std::span(parts).subspan(first, std::min(readers, parts.size() - first)));
  }
}

}  // namespace octet::checkpoint
