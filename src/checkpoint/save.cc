#include "octet/checkpoint/save.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <unordered_map>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/coverage.h"
#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/packer.h"
#include "octet/files/file_io.h"
#include "outline.h"

namespace octet::checkpoint {

// Writes pieces of a checkpoint's data file, through the page cache or with O_DIRECT.

class DataFile {
 public:
  /// Opens an existing file. With `direct`, whole pages bypass the page cache if the file system supports
  /// O_DIRECT. They need no copy if memory address and file offset are equal modulo 4096. All other bytes are
  /// written through the page cache. So two ranks can write parts of one page.
  DataFile(const std::string& path, bool direct);

  /// Writes all `size` bytes at `offset`. Throws Error.
  void write(const void* bytes, std::int64_t size, std::int64_t offset);
  /// Blocks until all writes are on the device.
  void sync() { files::sync_file(file_.get(), path_); }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  bool write_pages(const std::byte* bytes, std::int64_t size, std::int64_t offset);

  std::string path_;
  files::Descriptor file_, direct_;
  std::unique_ptr<std::byte, Free> pages_;  ///< buffer for unaligned bytes; allocated when needed
};

namespace {

constexpr std::int64_t kPage = 4096;  ///< alignment that O_DIRECT accepts on every device
/// Smaller pieces are written through the page cache, which is faster for them.
constexpr std::int64_t kLeastDirect = 128 << 10;
constexpr std::int64_t kLargestDirect = 16 << 20;
constexpr std::int64_t kCopied = 4 << 20;  ///< bytes copied at a time if pages are unaligned

}  // namespace

void DataFile::Free::operator()(void* memory) const {
  std::free(memory);
}

DataFile::DataFile(const std::string& path, bool direct)
    : path_(path), file_(files::open_file(path, O_RDWR)) {
  if (direct) direct_ = files::Descriptor(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
}

void DataFile::write(const void* bytes, std::int64_t size, std::int64_t offset) {
  const auto* from = static_cast<const std::byte*>(bytes);
  const std::int64_t first = (offset + kPage - 1) / kPage * kPage, last = (offset + size) / kPage * kPage;
  if (direct_.get() < 0 || last - first < kLeastDirect ||
      !write_pages(from + (first - offset), last - first, first)) {
    return files::write_at(file_.get(), path_, from, size, offset);
  }
  files::write_at(file_.get(), path_, from, first - offset, offset);
  files::write_at(file_.get(), path_, from + (last - offset), offset + size - last, last);
}

// Returns false if the file system rejects direct writes; later calls then do not try them.
bool DataFile::write_pages(const std::byte* bytes, std::int64_t size, std::int64_t offset) {
  const bool in_place = reinterpret_cast<std::uintptr_t>(bytes) % kPage == 0;
  if (!in_place && !pages_) {
    pages_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, kCopied)));
    if (!pages_) throw std::bad_alloc();
  }
  while (size > 0) {
    const std::int64_t most = std::min(size, in_place ? kLargestDirect : kCopied);
    const std::byte* from = bytes;
    if (!in_place)
      from = static_cast<std::byte*>(std::memcpy(pages_.get(), bytes, static_cast<std::size_t>(most)));
    const ssize_t n = ::pwrite(direct_.get(), from, static_cast<std::size_t>(most), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EINVAL && errno != EOPNOTSUPP)
      files::file_error("cannot write a file", path_, errno);
    // After a short write, the next offset may be unaligned.
    if (n <= 0 || n % kPage != 0) {
      direct_ = {};
      return false;
    }
    bytes += n, size -= n, offset += n;
  }
  return true;
}

namespace {

namespace fs = std::filesystem;

// This rank's part of one save. A phase begins only after all ranks completed the earlier phases, because
// each phase is a call of `together`.
class Saving {
 public:
  Saving(comm::Channel& channel, const std::string& output_dir, const CheckpointContents& contents)
      : comm_(channel), output_dir_(output_dir), contents_(contents), leads_(channel.rank() == 0) {}
  ~Saving() {
    std::error_code ignored;
    if (leads_ && !temporary_.empty()) fs::remove_all(temporary_, ignored);
  }
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;

  std::string run() {
    std::string mine;
    comm_.together([&] { mine = describe(contents_.slices); });
    const std::vector<std::string> descriptions = comm_.all_gather_bytes(mine);
    comm_.together([&] {
      if (leads_) lay_file_out(cover(descriptions));
    });
    receive_plan(comm_.broadcast(leads_ ? plan() : "", 0));
    comm_.together([&] { write_slices(); });
    comm_.together([&] { hash_cut_chunks(); });
    const std::vector<std::string> hashes = comm_.all_gather_bytes(hashes_.packed());
    std::string target = output_dir_ + "/" + folder_name(contents_.step);
    comm_.together([&] {
      if (leads_) publish(hashes, target);
    });
    return target;
  }

 private:
  std::string data_path() const { return temporary_ + "/" + kDataName; }

  // Rank 0: creates the temporary folder, and a data file of the full size with its metadata.
  void lay_file_out(Coverage coverage) {
    make_folders(output_dir_);
    const auto parent = fs::path(output_dir_).parent_path();
    if (!parent.empty()) sync_folder(parent.string());
    try {
      state_text_ = filled_up(contents_.state->dump());
    } catch (const nlohmann::json::exception& e) {
      throw Error(Problem{.what = "the training state cannot be written as JSON", .found = e.what()});
    }
    config_text_ = filled_up(contents_.config_yaml);
    LayoutRequest request{.tensors = std::move(coverage.tensors),
                          .state_bytes = static_cast<std::int64_t>(state_text_.size()),
                          .config_bytes = static_cast<std::int64_t>(config_text_.size()),
                          .step = contents_.step,
                          .world = comm_.size(),
                          .zero_stage = contents_.zero_stage};
    cut_chunks_ = std::move(coverage.cut_chunks);

    if (files::plays_full_disk(output_dir_))
      files::file_error("cannot take disk space for a checkpoint", output_dir_, ENOSPC);
    const FileLayout layout = lay_out(request);
    manifest_ = planned_manifest(request, layout);
    require_space(layout.file_bytes + manifest_bytes(manifest_));
    std::string name = output_dir_ + "/" + folder_name(contents_.step) + ".tmp-" +
                       std::to_string(::getpid()) + "-" + std::to_string(std::random_device{}());
    if (::mkdir(name.c_str(), 0755) != 0)
      files::file_error("cannot make a folder for a checkpoint", name, errno);
    temporary_ = std::move(name);
    const files::Descriptor file = files::open_file(data_path(), O_RDWR | O_CREAT | O_EXCL);
    // Disk space is reserved before any rank writes. If a file system cannot reserve space (EOPNOTSUPP), the
    // writes report a full disk.
    if (::fallocate(file.get(), 0, 0, layout.file_bytes) != 0 && errno != EOPNOTSUPP)
      files::file_error("cannot take disk space for a checkpoint", data_path(), errno);
    if (::ftruncate(file.get(), layout.file_bytes) != 0)
      files::file_error("cannot set the size of a file", data_path(), errno);
    copy_image(layout, file.get(), data_path());

    manifest_.state.hash = hash128_hex(state_text_);
    manifest_.config.hash = hash128_hex(config_text_);
  }

  // Rank 0: detects a full disk before any write, if the file system reports free space.
  void require_space(std::int64_t bytes) const {
    struct statvfs disk {};
    if (::statvfs(output_dir_.c_str(), &disk) != 0) return;
    const double blocks = static_cast<double>(::geteuid() == 0 ? disk.f_bfree : disk.f_bavail);
    const double free = blocks * static_cast<double>(disk.f_frsize);
    if (free >= static_cast<double>(bytes)) return;
    throw Error({.what = "the disk has too little space for a checkpoint",
                 .expected = human_bytes(static_cast<double>(bytes)) + " free",
                 .found = human_bytes(free) + " free",
                 .where = output_dir_,
                 .fix = "free some disk space, keep fewer checkpoints (save_total_limit) or write elsewhere",
                 .code = ExitCode::storage});
  }

  // Rank 0: packs the temporary folder, the offsets of tensors and cut_chunks_ for the other ranks.
  std::string plan() const {
    Packer packer;
    packer.text(temporary_).number(static_cast<std::int64_t>(manifest_.tensors.size()));
    for (const auto& tensor : manifest_.tensors)
      packer.header(tensor).number(tensor.bytes).number(tensor.offset);
    for (const auto& [tensor, chunk] : cut_chunks_)
      packer.number(static_cast<std::int64_t>(tensor)).number(chunk);
    return packer.packed();
  }

  void receive_plan(const std::string& packed) {
    if (!leads_) {
      Unpacker unpacker(packed);
      temporary_ = unpacker.text();
      for (std::int64_t n = unpacker.number(); n > 0; --n) {
        CheckpointTensor tensor;
        static_cast<weights::TensorHeader&>(tensor) = unpacker.header();
        tensor.bytes = unpacker.number();
        tensor.offset = unpacker.number();
        manifest_.tensors.push_back(std::move(tensor));
      }
      while (!unpacker.done()) {
        const auto tensor = static_cast<std::size_t>(unpacker.number());
        cut_chunks_.emplace_back(tensor, unpacker.number());
      }
    }
    for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) index_[manifest_.tensors[i].name] = i;
  }

  void add_hash(std::size_t tensor, std::int64_t chunk, const std::byte* bytes, std::int64_t size) {
    const std::uint64_t hash = hash64({reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size)});
    hashes_.number(static_cast<std::int64_t>(tensor)).number(chunk).number(static_cast<std::int64_t>(hash));
  }

  // If one run of a slice contains a whole chunk, hashes the chunk from memory. A later read then detects
  // disk errors.
  void write_slices() {
    files::failpoint("before_write");
    const std::string path = data_path();
    DataFile file(path, contents_.direct);
    for (const auto& slice : contents_.slices) {
      const std::size_t index = index_.at(slice.name);
      const CheckpointTensor& tensor = manifest_.tensors[index];
      const auto width = static_cast<std::int64_t>(size_of(slice.dtype));
      each_run(slice, [&](std::int64_t first_element, std::int64_t count, const void* values) {
        const std::int64_t begin = first_element * width, end = begin + count * width;
        const auto* data = static_cast<const std::byte*>(values);
        for (std::int64_t chunk = chunk_count(begin); chunk < chunk_count(end); ++chunk) {
          const std::int64_t first = chunk * kChunkBytes;
          const std::int64_t last = std::min(first + kChunkBytes, tensor.bytes);
          if (first >= begin && last <= end) add_hash(index, chunk, data + (first - begin), last - first);
        }
        file.write(data, end - begin, tensor.offset + begin);
      });
      files::failpoint("mid_write");
    }
    if (leads_) {
      file.write(state_text_.data(), manifest_.state.bytes, manifest_.state.offset);
      file.write(config_text_.data(), manifest_.config.bytes, manifest_.config.offset);
    }
    files::failpoint("before_fsync");
    file.sync();
  }

  // Hashes the chunks that several runs make up. Each rank reads a share of them back from the file. The file
  // is opened again, because NFS shows writes of other nodes only after open().
  void hash_cut_chunks() {
    const std::string path = data_path();
    const files::Descriptor file = files::open_file(path, O_RDONLY);
    std::vector<std::byte> buffer(static_cast<std::size_t>(kChunkBytes));
    for (auto i = static_cast<std::size_t>(comm_.rank()); i < cut_chunks_.size();
         i += static_cast<std::size_t>(comm_.size())) {
      const auto [index, chunk] = cut_chunks_[i];
      const CheckpointTensor& tensor = manifest_.tensors[index];
      const std::int64_t begin = chunk * kChunkBytes;
      const std::int64_t bytes = std::min(kChunkBytes, tensor.bytes - begin);
      files::read_at(file.get(), path, buffer.data(), bytes, tensor.offset + begin);
      add_hash(index, chunk, buffer.data(), bytes);
    }
  }

  // Rank 0: writes the manifest last, then renames the folder.
  void publish(const std::vector<std::string>& hashes, const std::string& target) {
    std::vector<std::int64_t> known(manifest_.tensors.size());
    for (auto& tensor : manifest_.tensors)
      tensor.chunks.resize(static_cast<std::size_t>(chunk_count(tensor.bytes)));
    for (const auto& packed : hashes) {
      for (Unpacker unpacker(packed); !unpacker.done();) {
        const auto index = static_cast<std::size_t>(unpacker.number());
        const auto chunk = static_cast<std::size_t>(unpacker.number());
        manifest_.tensors.at(index).chunks.at(chunk) = static_cast<std::uint64_t>(unpacker.number());
        ++known[index];
      }
    }
    for (std::size_t i = 0; i < known.size(); ++i) {
      auto& tensor = manifest_.tensors[i];
      check(known[i] == chunk_count(tensor.bytes), "every chunk of a checkpoint is hashed once");
      tensor.hash = content_hash(tensor, tensor.chunks);
    }
    {
      const files::Descriptor file = files::open_file(data_path(), O_RDONLY);
      manifest_.layout_hash = hash_layout(file.get(), data_path(), manifest_);
    }
    files::failpoint("before_manifest");
    write_file_atomically(temporary_ + "/" + kManifestName, manifest_text(manifest_));
    files::failpoint("before_rename");
    give_name(target);
    files::failpoint("after_rename");
    sync_folder(output_dir_);
  }

  // Renames a folder at `target` that is not a checkpoint of this program.
  static void rename_foreign_folder(const std::string& target) {
    if (!path_exists(target) || is_own_checkpoint(target)) return;
    std::string kept = target + ".kept";
    for (int i = 2; path_exists(kept); ++i) kept = target + ".kept-" + std::to_string(i);
    if (::rename(target.c_str(), kept.c_str()) != 0) files::file_error("cannot move a folder", target, errno);
    log::warn(
        "a folder already had the name of the new checkpoint, but this program did not write it. It was "
        "renamed to " +
        kept);
  }

  void give_name(const std::string& target) {
    rename_foreign_folder(target);
    if (!path_exists(target)) {
      if (::rename(temporary_.c_str(), target.c_str()) != 0)
        files::file_error("cannot rename a finished checkpoint into place", target, errno);
      temporary_.clear();
      return;
    }
    // The names are exchanged, so that a complete checkpoint of this step exists at every moment. The old
    // checkpoint then has the temporary name and is removed.
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
    if (errno != EINVAL && errno != ENOSYS)
      files::file_error("cannot rename a finished checkpoint into place", target, errno);
    const std::string old = temporary_ + "-old";
    if (::rename(target.c_str(), old.c_str()) != 0 || ::rename(temporary_.c_str(), target.c_str()) != 0)
      files::file_error("cannot rename a finished checkpoint into place", target, errno);
    temporary_ = old;
  }

  comm::Channel& comm_;
  const std::string output_dir_;
  const CheckpointContents& contents_;
  const bool leads_;
  std::string temporary_;  ///< removed at the end by rank 0, unless it was renamed
  std::string state_text_, config_text_;
  Manifest manifest_;  ///< ranks other than 0 have only the tensors and their offsets
  std::vector<std::pair<std::size_t, std::int64_t>> cut_chunks_;  ///< (tensor, chunk) of several runs
  std::unordered_map<std::string, std::size_t> index_;
  Packer hashes_;  ///< (tensor, chunk, hash) of the chunks that this rank hashed
};

}  // namespace

std::string save(comm::Channel& channel, const std::string& output_dir, const CheckpointContents& contents) {
  check(contents.step >= 0, "a checkpoint has a step");
  return Saving(channel, output_dir, contents).run();
}

}  // namespace octet::checkpoint
