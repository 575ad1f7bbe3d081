// Durability after a power loss. The test intercepts the system calls of this program. Data must be synced
// before the rename that publishes them, and the folder after it.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "octet/base/files.h"
#include "octet/weights/safetensors_writer.h"
#include "sample.h"

namespace octet::checkpoint {
namespace {

enum class Call { write, sync, rename };

struct Event {
  Call call;
  std::string path;  ///< rename: the new name
  std::string from;  ///< rename: the old one
  std::thread::id thread;
};

/// Records file operations while an object of this class lives.
class Watch {
 public:
  Watch() { current() = this; }
  ~Watch() { current() = nullptr; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  static Watch*& current() {
    static Watch* watch = nullptr;
    return watch;
  }
  static void see(Call call, const std::string& path, const std::string& from = "") {
    if (current() == nullptr) return;
    const std::scoped_lock lock(current()->mutex_);
    current()->events_.push_back({call, path, from, std::this_thread::get_id()});
  }
  static void see(Call call, int descriptor) {
    if (current() == nullptr) return;
    char path[PATH_MAX];
    const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof path);
    if (n > 0) see(call, std::string(path, static_cast<std::size_t>(n)));
  }
  const std::vector<Event>& events() const { return events_; }

  /// Returns the index of the only rename to `path`. Fails if there is none or more than one.
  std::size_t renamed_to(const std::string& path) const {
    std::size_t place = events_.size();
    int found = 0;
    for (std::size_t i = 0; i < events_.size(); ++i) {
      if (events_[i].call == Call::rename && events_[i].path == path) place = i, ++found;
    }
    EXPECT_EQ(found, 1) << "renames to " << path;
    return place;
  }
  /// Returns whether `path` was synced in events [first, last).
  bool synced(const std::string& path, std::size_t first, std::size_t last) const {
    for (std::size_t i = first; i < std::min(last, events_.size()); ++i) {
      if (events_[i].call == Call::sync && events_[i].path == path) return true;
    }
    return false;
  }
  /// Expects that every thread that wrote to `path` synced it after its last write and before `last`. Returns
  /// the number of these threads.
  int expect_written_and_synced(const std::string& path, std::size_t last) const {
    std::vector<std::thread::id> threads;
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const Event& e = events_[i];
      if (e.call != Call::write || e.path != path) continue;
      EXPECT_LT(i, last) << path << " is written after it has its name";
      const bool later = std::ranges::any_of(events_.begin() + static_cast<std::ptrdiff_t>(i), events_.end(),
                                             [&](const Event& s) {
                                               return s.call == Call::sync && s.path == path &&
                                                      s.thread == e.thread && &s < events_.data() + last;
                                             });
      EXPECT_TRUE(later) << path << ": what a rank wrote is not synced before the name appears";
      if (std::ranges::find(threads, e.thread) == threads.end()) threads.push_back(e.thread);
    }
    return static_cast<int>(threads.size());
  }

 private:
  std::mutex mutex_;
  std::vector<Event> events_;
};

/// Returns the C library's version of the function.
template <typename Function>
Function next(const char* name, Function) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace octet::checkpoint

using octet::checkpoint::Call;
using octet::checkpoint::Watch;

extern "C" {
int fsync(int descriptor) {
  Watch::see(Call::sync, descriptor);
  return octet::checkpoint::next("fsync", &fsync)(descriptor);
}
ssize_t write(int descriptor, const void* bytes, size_t count) {
  Watch::see(Call::write, descriptor);
  return octet::checkpoint::next("write", &write)(descriptor, bytes, count);
}
ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
  Watch::see(Call::write, descriptor);
  return octet::checkpoint::next("pwrite", &pwrite)(descriptor, bytes, count, offset);
}
int rename(const char* from, const char* to) noexcept {
  Watch::see(Call::rename, to, from);
  return octet::checkpoint::next("rename", &rename)(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  Watch::see(Call::rename, to, from);
  return octet::checkpoint::next("renameat2", &renameat2)(from_folder, from, to_folder, to, flags);
}
}

namespace octet::checkpoint {
namespace {

void expect_durable_checkpoint(const Watch& watch, const std::string& output, const std::string& name,
                               int ranks) {
  const std::size_t named = watch.renamed_to(output + "/" + name);
  ASSERT_LT(named, watch.events().size());
  const std::string temporary = watch.events()[named].from;
  EXPECT_EQ(watch.expect_written_and_synced(temporary + "/checkpoint.h5", named), ranks);
  // The manifest marks the data as complete. It has its own temporary name, and must be renamed after all
  // data are synced.
  const std::size_t manifest = watch.renamed_to(temporary + "/manifest.json");
  ASSERT_LT(manifest, named);
  EXPECT_EQ(watch.expect_written_and_synced(watch.events()[manifest].from, manifest), 1);
  EXPECT_EQ(watch.expect_written_and_synced(temporary + "/checkpoint.h5", manifest), ranks);
  EXPECT_TRUE(watch.synced(temporary, manifest, named)) << "the folder that holds the manifest's name";
  EXPECT_TRUE(watch.synced(output, named, watch.events().size()))
      << "the folder that holds the checkpoint's name";
}

TEST(Durable, DataAreSyncedBeforeTheCheckpointHasItsNameAndTheFolderAfterwards) {
  for (const int ranks : {1, 3}) {
    const Scratch scratch;
    const std::string output = scratch / "runs/one";
    const Watch watch;
    save_sample(output, 5, ranks);
    expect_durable_checkpoint(watch, output, "checkpoint-5", ranks);
    EXPECT_TRUE(watch.synced(scratch / "runs", 0, watch.renamed_to(output + "/checkpoint-5")))
        << "the folder that holds the name of the output folder";
  }
}

TEST(Durable, ACheckpointThatTakesTheNameOfAnotherIsSyncedToo) {
  const Scratch scratch;
  save_sample(scratch.path(), 5, 2);
  const Watch watch;
  save_sample(scratch.path(), 5, 2);
  expect_durable_checkpoint(watch, scratch.path(), "checkpoint-5", 2);
}

TEST(Durable, AFileThatAppearsAtOnceIsSyncedFirstAndItsFolderAfterwards) {
  const Scratch scratch;
  const Watch watch;
  write_file_atomically(scratch / "state.json", "{}");
  const std::size_t named = watch.renamed_to(scratch / "state.json");
  ASSERT_LT(named, watch.events().size());
  EXPECT_EQ(watch.expect_written_and_synced(watch.events()[named].from, named), 1);
  EXPECT_TRUE(watch.synced(scratch.path(), named, watch.events().size()));
}

TEST(Durable, WeightsAreSyncedBeforeTheyHaveTheirNameAndTheFolderAfterwards) {
  const Scratch scratch;
  std::vector<float> values(1000, 2.5f);
  const Watch watch;
  weights::write_safetensors(scratch / "model.safetensors",
                             {{"w", DType::f32, {1000}, 0, 1000, values.data()}});
  const std::size_t named = watch.renamed_to(scratch / "model.safetensors");
  ASSERT_LT(named, watch.events().size());
  EXPECT_EQ(watch.expect_written_and_synced(watch.events()[named].from, named), 1);
  EXPECT_TRUE(watch.synced(scratch.path(), named, watch.events().size()));
}

}  // namespace
}  // namespace octet::checkpoint
