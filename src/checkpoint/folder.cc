#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/own_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/packing.h"
#include "octet/files/failpoint.h"

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

}  // namespace octet::checkpoint
