#include "octet/checkpoint/folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/process.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/packer.h"
#include "octet/files/file_io.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "checkpoint-";

// Returns the step of "checkpoint-<step>", or nothing unless folder_name() writes the name like this.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, code] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (code != std::errc() || stop != end || step < 0 || folder_name(step) != name) return std::nullopt;
  return step;
}

// Returns whether `ending` follows ".tmp-" in names of save() and rotate(): "123-456", "123-456-old" or
// "pruned".
bool is_temporary(std::string_view ending) {
  if (ending == "pruned") return true;
  if (ending.ends_with("-old")) ending.remove_suffix(4);
  const std::size_t dash = ending.find('-');
  return dash != std::string_view::npos && dash > 0 && dash + 1 < ending.size() &&
         ending.find_first_not_of("0123456789-") == std::string_view::npos &&
         ending.find('-', dash + 1) == std::string_view::npos;
}

// Returns why this rank cannot use a checkpoint, or "".
std::string complaint(const std::string& path, const FindOptions& options, int rank, int size) {
  try {
    const Checkpoint checkpoint(path);
    require_own_name(path, checkpoint.step());
    if (options.verify_data) checkpoint.verify(rank, size);
  } catch (const std::exception& e) {
    // Any error rejects only this checkpoint; an older one may be valid.
    return e.what();
  }
  return "";
}

}  // namespace

std::string folder_name(std::int64_t step) {
  return std::string(kPrefix) + std::to_string(step);
}

std::vector<std::pair<std::int64_t, std::string>> list_checkpoints(const std::string& output_dir) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(output_dir, code)) {
    const auto step = step_of(entry.path().filename().string());
    std::error_code ignored;
    if (step && fs::is_directory(entry.path(), ignored)) found.emplace_back(*step, entry.path().string());
  }
  if (code && code != std::errc::no_such_file_or_directory) {
    throw Error({.what = "cannot list an output folder",
                 .found = code.message(),
                 .where = output_dir,
                 .fix = code == std::errc::not_a_directory
                            ? "name a folder: there is a file of this name"
                            : "check the permissions of the folder and of the file system",
                 .code = exit_code_of(code.value())});
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_own_checkpoint(const std::string& path) {
  return path_exists(path + "/" + kManifestName) || path_exists(path + "/" + kDataName);
}

void remove_stale(const std::string& output_dir) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(output_dir, code)) {
    const std::string name = entry.path().filename().string();
    const std::size_t mark = name.find(".tmp-");
    if (mark == std::string::npos || !step_of(name.substr(0, mark)) || !is_temporary(name.substr(mark + 5)))
      continue;
    log::info("removing the files of an interrupted save: " + entry.path().string());
    std::error_code failed;
    fs::remove_all(entry.path(), failed);
    if (failed)
      log::warn("cannot remove " + entry.path().string() + ": " + failed.message(), log::Importance::setting);
  }
}

Found find_latest(comm::Channel& channel, const std::string& output_dir, const FindOptions& options) {
  // Only rank 0 lists the folder, because ranks may see different lists on network file systems.
  Packer listing;
  channel.together([&] {
    if (channel.rank() != 0) return;
    remove_stale(output_dir);
    auto all = list_checkpoints(output_dir);
    std::reverse(all.begin(), all.end());
    for (const auto& [step, path] : all) {
      if (step < options.before_step) listing.text(path);
    }
  });
  const std::string packed = channel.broadcast(listing.packed(), 0);
  Found found;
  for (Unpacker unpacker(packed); !unpacker.done();) {
    const std::string path = unpacker.text();
    const auto complaints =
        channel.all_gather_bytes(complaint(path, options, channel.rank(), channel.size()));
    const auto first = std::find_if(complaints.begin(), complaints.end(),
                                    [](const std::string& text) { return !text.empty(); });
    if (first == complaints.end()) {
      found.path = path;
      return found;
    }
    if (channel.rank() == 0)
      log::warn("skipping an invalid checkpoint: " + path + "\n" + *first, log::Importance::training);
    found.rejected.emplace_back(path, *first);
  }
  return found;
}

bool is_checkpoint(const std::string& path) {
  if (path_exists(path + "/manifest.json") || path_exists(path + "/checkpoint.h5")) return true;
  const fs::path folder = fs::path(path + "/.").lexically_normal().parent_path();
  return folder.filename().string().starts_with(kPrefix);
}

std::string checkpoint_of_run(const std::string& path) {
  std::error_code none;
  const bool holds_some =
      !is_checkpoint(path) && fs::is_directory(path, none) && !list_checkpoints(path).empty();
  return holds_some ? resolve_checkpoint(path) : path;
}

std::string resolve_checkpoint(const std::string& path) {
  if (path_exists(path + "/" + kManifestName)) return path;
  auto all = list_checkpoints(path);
  std::reverse(all.begin(), all.end());
  std::string complaints;
  for (const auto& [step, candidate] : all) {
    const std::string reason = complaint(candidate, {.verify_data = false}, 0, 1);
    if (reason.empty()) return candidate;
    complaints += (complaints.empty() ? "" : "\n") + reason;
  }
  throw Error({.what = "there is no valid checkpoint",
               .expected = "a folder checkpoint-<step>, or an output folder that holds one",
               .found = !complaints.empty() ? complaints
                        : path_exists(path) ? "none"
                                            : "no such folder",
               .where = path,
               .fix = "name a valid checkpoint; trainer inspect PATH lists the faults of one",
               .code = ExitCode::no_valid_checkpoint});
}

void require_own_name(const std::string& path, std::int64_t step) {
  const auto named = step_of(fs::path(path + "/.").lexically_normal().parent_path().filename().string());
  if (!named || *named == step) return;
  throw Error({.what = "a checkpoint has the name of another one",
               .expected = folder_name(step) + ", by the step that it holds",
               .found = folder_name(*named),
               .where = path,
               .fix = "give the folder the name of its step, or take another checkpoint",
               .code = ExitCode::no_valid_checkpoint});
}

void rotate(const std::string& output_dir, std::int64_t keep_last, const std::string& keep_best,
            const std::set<std::int64_t>* counting) {
  if (keep_last <= 0) return;
  const std::string best = fs::path(keep_best).filename().string();
  auto all = list_checkpoints(output_dir);
  std::reverse(all.begin(), all.end());
  std::int64_t kept = 0;
  bool removed = false;
  for (const auto& [step, path] : all) {
    try {
      if (read_manifest(path).step != step) continue;
    } catch (const std::exception&) {
      continue;
    }
    if (kept < keep_last) {
      kept += counting == nullptr || counting->contains(step) ? 1 : 0;
      continue;
    }
    if (folder_name(step) == best) continue;
    files::failpoint("before_prune");
    const std::string going = path + ".tmp-pruned";
    std::error_code code;
    fs::remove_all(going, code);
    if (!code) fs::rename(path, going, code);
    if (!code) fs::remove_all(going, code);
    if (code)
      log::warn("cannot remove an old checkpoint: " + path + ": " + code.message(), log::Importance::setting);
    removed = true;
  }
  if (removed) sync_folder(output_dir);
}

Keeper::Keeper(std::string folder, std::int64_t keep_last)
    : folder_(std::move(folder)), keep_last_(keep_last) {}

void Keeper::trust(std::int64_t step) {
  counts_.insert(step);
}

void Keeper::saved(std::int64_t step) {
  settle();
  counts_.erase(step);  // a new checkpoint of this step replaced it
  step_ = step;
  reading_ = std::async(std::launch::async, [path = folder_ + "/" + folder_name(step)]() -> std::string {
    run_thread_behind();  // low priority, because training steps run concurrently
    try {
      read_back(path);
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  });
}

bool Keeper::is_read() const {
  return reading_.valid() && reading_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

std::string Keeper::settle() {
  if (!reading_.valid()) return "";
  std::string wrong = reading_.get();
  if (!wrong.empty()) return wrong;
  counts_.insert(step_);
  rotate(folder_, keep_last_, best_ < 0 ? "" : folder_name(best_), &counts_);
  return "";
}

namespace {

constexpr std::int64_t kDirectAlignment =
    /// Alignment of offsets, sizes and memory that O_DIRECT accepts on every device.
    4096;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Drops the clean pages of a file from the page cache.
void drop_pages(const std::string& path) {
  const files::Descriptor file = files::open_file(path, O_RDONLY | O_NONBLOCK);
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

/// A file that is read without the page cache.
class DeviceFile {
 public:
  explicit DeviceFile(const std::string& path)
      : path_(path), buffer_(std::aligned_alloc(kDirectAlignment, kChunkBytes + 2 * kDirectAlignment)) {
    if (!buffer_) throw std::bad_alloc();
    int fd = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    direct_ = fd >= 0;
    file_ = direct_ ? files::Descriptor(fd) : files::open_file(path, O_RDONLY);
  }
  /// Returns `bytes` bytes (at most a chunk) at `offset`; valid until the next call.
  const char* read(std::int64_t offset, std::int64_t bytes) {
    auto* buffer = static_cast<char*>(buffer_.get());
    if (direct_ && read_aligned(offset, bytes)) return buffer + offset % kDirectAlignment;
    files::read_at(file_.get(), path_, buffer, bytes, offset);
    return buffer;
  }

 private:
  // Returns false if the file system rejects direct reads; the file is then reopened without O_DIRECT.
  bool read_aligned(std::int64_t offset, std::int64_t bytes) {
    const std::int64_t first = offset / kDirectAlignment * kDirectAlignment;
    const std::int64_t wanted = offset + bytes - first;
    const std::int64_t size = (wanted + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    std::int64_t done = 0;
    while (done < wanted) {
      const ssize_t n = ::pread(file_.get(), static_cast<char*>(buffer_.get()) + done,
                                static_cast<std::size_t>(size - done), first + done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno != EINVAL) files::file_error("cannot read a file back", path_, errno);
      // After a short read, the next offset may be unaligned.
      if (n <= 0) {
        direct_ = false;
        file_ = files::open_file(path_, O_RDONLY);
        return false;
      }
      done += n;
    }
    return true;
  }

  std::string path_;
  std::unique_ptr<void, Free> buffer_;
  files::Descriptor file_;
  bool direct_ = false;
};

[[noreturn]] void not_as_written(const std::string& path, const std::string& what) {
  throw Error({.what = "the disk returns other bytes than the program wrote",
               .found = what,
               .where = path,
               .fix = "check the disk and its cables (dmesg, smartctl), and write to another disk",
               .code = ExitCode::storage});
}

}  // namespace

void read_back(const std::string& path) {
  const std::string data = path + "/" + kDataName;
  drop_pages(path + "/" + kManifestName);
  drop_pages(data);
  try {
    const Checkpoint checkpoint(path);
    DeviceFile file(data);
    for (const CheckpointTensor& tensor : checkpoint.tensors()) {
      for (std::int64_t chunk = 0; chunk < chunk_count(tensor.bytes); ++chunk) {
        const std::int64_t begin = tensor.offset + chunk * kChunkBytes;
        const std::int64_t bytes = std::min(kChunkBytes, tensor.bytes - chunk * kChunkBytes);
        const char* read = file.read(begin, bytes);
        if (hash64({read, static_cast<std::size_t>(bytes)}) != tensor.chunks[static_cast<std::size_t>(chunk)])
          not_as_written(data, "tensor '" + tensor.name + "', bytes " + std::to_string(begin) + " to " +
                                   std::to_string(begin + bytes) + " of the file");
      }
    }
  } catch (const Error& e) {
    if (e.code() != ExitCode::no_valid_checkpoint) throw;
    not_as_written(path, e.problem().what);
  }
}

}  // namespace octet::checkpoint
