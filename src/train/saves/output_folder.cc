#include "saves/output_folder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/checkpoint/folder.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;
constexpr const char* kSetAside = "overwritten";

void refuse_model_folder(const std::string& path, const std::string& model) {
  std::error_code none;
  if (!fs::equivalent(path, model, none)) return;
  throw Error({.what = "output_dir is the folder of the base model",
               .expected = "another folder: the trained model would replace the base weights",
               .where = path,
               .fix = "choose another output_dir",
               .code = ExitCode::usage});
}

void remove_left_behind(const std::string& folder) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    std::error_code none;
    if (!is_left_behind(entry.path().filename().string()) || !entry.is_regular_file(none)) continue;
    log::info("removing a file of an interrupted write: " + entry.path().string());
    fs::remove(entry.path(), none);
  }
}

}  // namespace

bool is_left_behind(const std::string& name) {
  static constexpr std::array<std::string_view, 9> kEndings{
      ".json", ".jsonl", ".yaml", ".safetensors", ".svg", ".png", ".md", ".jinja", ".write-test"};
  const std::size_t mark = name.rfind(".tmp-");
  if (mark == std::string::npos) return false;
  const std::string_view number = std::string_view(name).substr(mark + 5), own(name.data(), mark);
  return !number.empty() && std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; }) &&
         std::ranges::any_of(kEndings, [&](std::string_view ending) { return own.ends_with(ending); });
}

OutputFolder::OutputFolder(const std::string& path, const std::string& model) : path_(path) {
  refuse_model_folder(path, model);
  made_ = !path_exists(path);
  make_folders(path);
  lock_ = std::make_unique<files::FolderLock>(path);
  write_file_atomically(path + "/.write-test", "");
  ::unlink((path + "/.write-test").c_str());
  remove_left_behind(path);
  // Temporary checkpoints are also removed here, because not every start searches for a checkpoint.
  checkpoint::remove_stale(path);
}

void require_fallback(const std::string& folder) {
  const bool made = !path_exists(folder);
  try {
    make_folders(folder);
    const std::string test = folder + "/.write-test-" + std::to_string(::getpid());
    write_file_atomically(test, "");
    ::unlink(test.c_str());
  } catch (const Error& e) {
    throw Error({.what = "save_fallback_dir cannot be written",
                 .expected = "a second folder for checkpoints",
                 .found = e.problem().what + ": " + e.problem().found,
                 .where = folder,
                 .fix = "name a folder that can be written, or leave save_fallback_dir out",
                 .code = e.code()});
  }
  if (made) ::rmdir(folder.c_str());
}

OutputFolder::~OutputFolder() {
  lock_.reset();
  if (made_) ::rmdir(path_.c_str());
}

namespace {

/// Returns the checkpoints that this program wrote.
std::vector<std::pair<std::int64_t, std::string>> own_checkpoints(const std::string& folder) {
  auto all = checkpoint::list_checkpoints(folder);
  std::erase_if(all, [](const auto& one) { return !checkpoint::is_own_checkpoint(one.second); });
  return all;
}

void set_aside(const std::string& folder) {
  const auto all = own_checkpoints(folder);
  if (all.empty()) return;
  const std::string aside = folder + "/" + kSetAside;
  make_folders(aside);
  // The newest is moved last. If the process is interrupted, the newest checkpoints are still in place.
  for (const auto& [step, from] : all) {
    const std::string to = aside + "/" + checkpoint::folder_name(step);
    std::error_code code;
    if (checkpoint::is_own_checkpoint(to)) fs::remove_all(to, code);
    if (!code) fs::rename(from, to, code);
    if (code)
      throw Error({.what = "cannot move a checkpoint",
                   .found = code.message(),
                   .where = from,
                   .fix = "check the permissions of the folder and of the file system",
                   .code = exit_code_of(code.value())});
  }
  sync_folder(aside);
  sync_folder(folder);
  log::info("overwrite_output_dir: the checkpoints of the previous run are kept in " + aside +
                " until this run has a checkpoint",
            log::Importance::data);
}

void remove_from_aside(const std::string& folder) {
  const std::string aside = folder + "/" + kSetAside;
  if (!path_exists(aside)) return;
  // Only checkpoints that set_checkpoints_aside() moved, so a user's folder with that name is safe.
  std::error_code code;
  for (const auto& [step, path] : own_checkpoints(aside)) {
    if (!code) fs::remove_all(path, code);
  }
  if (code)
    log::warn("cannot remove old checkpoints: " + aside + ": " + code.message(), log::Importance::setting);
  fs::remove(aside, code);
}

}  // namespace

void OutputFolder::set_checkpoints_aside(const std::string& fallback) const {
  set_aside(path_);
  if (!fallback.empty()) set_aside(fallback);
}

void OutputFolder::remove_set_aside(const std::string& fallback) const {
  remove_from_aside(path_);
  if (!fallback.empty()) remove_from_aside(fallback);
}

}  // namespace octet::train
