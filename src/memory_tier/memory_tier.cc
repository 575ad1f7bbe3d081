#include "octet/memory_tier/memory_tier.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <span>
#include <utility>

#include "host_pairs.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/process.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/checkpoint/packer.h"
#include "octet/files/file_io.h"
#include "part_set.h"
#include "rank_part.h"

namespace octet::memory_tier {
namespace {

namespace fs = std::filesystem;

constexpr int kGenerations = 2;
constexpr std::size_t kExchanged = std::size_t{4} << 20;  ///< bytes per message between hosts
constexpr const char* kCopy = "copy-";

std::string part_name(int rank, int world) {
  return "part-" + std::to_string(rank) + "-of-" + std::to_string(world);
}

/// Description of a file in a host's memory. All ranks exchange these descriptions.
struct Entry {
  bool complete = false;  ///< it is a valid part of this run
  bool copy = false;
  int slot = 0, node = 0, world = 0, rank = 0;
  std::int64_t step = 0;
  std::string taken;  ///< random name of the checkpoint, equal in all of its parts
  std::string path;
  std::string wrong;  ///< why it is invalid; empty for a part that was never completed
};

void pack(checkpoint::Packer& packer, const Entry& e) {
  packer.number(e.complete ? 1 : 0).number(e.copy ? 1 : 0).number(e.slot).number(e.node).number(e.world);
  packer.number(e.rank).number(e.step).text(e.taken).text(e.path).text(e.wrong);
}

Entry unpack(checkpoint::Unpacker& unpacker) {
  const auto small = [&] { return static_cast<int>(unpacker.number()); };
  Entry e;
  e.complete = small() != 0, e.copy = small() != 0, e.slot = small(), e.node = small(), e.world = small();
  e.rank = small(), e.step = unpacker.number();
  e.taken = unpacker.text(), e.path = unpacker.text(), e.wrong = unpacker.text();
  return e;
}

// Opens and verifies a file, and describes it.
Entry look_at(const std::string& path, const std::string& identity) {
  Entry entry{.path = path, .wrong = {}};
  entry.copy = fs::path(path).filename().string().starts_with(kCopy);
  try {
    const PartMemory file = PartMemory::open(path);
    const std::optional<PartHeader> header = read_header(file);
    if (!header) return entry;
    entry.world = header->facts.world, entry.rank = header->facts.rank;
    entry.step = header->facts.step, entry.taken = header->facts.taken;
    if (header->facts.identity != identity) {
      entry.wrong = "a checkpoint in memory is of another run, model or configuration\n  where:    " + path;
      return entry;
    }
    verify_values(file, *header);
    entry.complete = true;
  } catch (const std::exception& e) {
    entry.wrong = e.what();
  }
  return entry;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) files.push_back(entry.path().string());
  std::ranges::sort(files);
  return files;
}

std::string random_name() {
  std::random_device source;
  std::string text;
  for (int i = 0; i < 4; ++i) text += std::to_string(source()) + ".";
  return hash128_hex(text);
}

}  // namespace

/// A checkpoint that is being taken.
struct MemoryTier::Work {
  std::int64_t step = 0;
  int slot = 0;
  Clock::time_point began = Clock::now();
  std::string wrong;  ///< error, equal on all ranks; empty if the values are copied
  std::optional<PartHeader> header;
  std::optional<PartMemory> memory;
};

MemoryTier::MemoryTier(comm::Job& job, MemoryOptions options) : job_(job), options_(std::move(options)) {
  channel_ = job_.channel("memory");
  for (const auto& round : pair_hosts(job_.place().nodes)) {
    pairs_.push_back(job_.channel("memory of another host",
                                  {.name = "hosts", .ranks = exchange_group(job_.place(), round)}));
  }
  job_.together([&] {
    if (job_.place().local_rank == 0) {
      remove_stale_memory();
      remove_earlier_memory(options_.folder);
    }
    hold_.emplace(options_.folder);
    for (int slot = 0; slot < kGenerations; ++slot) {
      if (::mkdir(slot_folder(slot).c_str(), 0700) != 0 && errno != EEXIST)
        files::file_error("cannot make a folder for checkpoints in memory", slot_folder(slot), errno);
    }
    if (job_.place().local_rank == 0 && !options_.keeper.empty())
      start_memory_keeper(options_.keeper, options_.folder);
  });
}

MemoryTier::~MemoryTier() = default;

std::string MemoryTier::slot_folder(int slot) const {
  return options_.folder + "/" + (slot == 0 ? "a" : "b");
}

std::vector<std::string> MemoryTier::expected_names() const {
  const comm::Place& place = job_.place();
  std::vector<std::string> names;
  for (int rank = 0; rank < place.size; ++rank) {
    if (place.node_of[static_cast<std::size_t>(rank)] == place.node)
      names.push_back(part_name(rank, place.size));
  }
  for (const int rank : copied_by(place)) names.push_back(kCopy + part_name(rank, place.size));
  return names;
}

void MemoryTier::require_room(const std::vector<TensorSlice>& slices) {
  constexpr std::int64_t kTexts = 1 << 20;  // room for the texts of state and configuration
  std::int64_t mine = kTexts;
  job_.together([&] { mine += lay_part_out({}, slices).file_bytes; });
  const std::vector<std::int64_t> all = job_.all_gather_int(mine);
  job_.together([&] {
    const comm::Place& place = job_.place();
    if (place.local_rank != 0) return;
    std::int64_t need = 0;
    for (int rank = 0; rank < place.size; ++rank) {
      if (place.node_of[static_cast<std::size_t>(rank)] == place.node)
        need += all[static_cast<std::size_t>(rank)];
    }
    for (const int rank : copied_by(place)) need += all[static_cast<std::size_t>(rank)];
    require_memory_room(kGenerations * need, memory_room(options_.folder), options_.folder, place.host);
  });
}

namespace {

/// The parts of one checkpoint, by rank. The original is preferred to its copy.
using PartsByRank = std::map<int, const Entry*>;

// Groups complete parts by checkpoint, sorted by step.
std::map<std::pair<std::int64_t, std::string>, PartsByRank> by_checkpoint(const std::vector<Entry>& entries) {
  std::map<std::pair<std::int64_t, std::string>, PartsByRank> found;
  for (const Entry& entry : entries) {
    if (!entry.complete) continue;
    const Entry*& part = found[{entry.step, entry.taken}][entry.rank];
    if (part == nullptr || (part->copy && !entry.copy)) part = &entry;
  }
  return found;
}

// Returns the rank that sends a part to the hosts without this part. The ranks of a host
// share this work.
int giver_of(const Entry& entry, const comm::Place& place) {
  std::vector<int> there;
  for (int rank = 0; rank < place.size; ++rank) {
    if (place.node_of[static_cast<std::size_t>(rank)] == entry.node) there.push_back(rank);
  }
  return there[static_cast<std::size_t>(entry.rank) % there.size()];
}

// Returns this host's part or its copy of the part, or nothing if it has neither.
std::optional<PartMemory> open_here(const Entry& part, const std::vector<Entry>& entries, int node) {
  for (const Entry& entry : entries) {
    if (entry.complete && entry.taken == part.taken && entry.rank == part.rank && entry.node == node)
      return PartMemory::open(entry.path);
  }
  return std::nullopt;
}

// Opens all parts, and receives the headers of remote parts. Collective.
checkpoint::Checkpoint open_parts(comm::Channel& channel, const PartsByRank& chosen,
                                  const std::vector<Entry>& entries) {
  std::vector<PartSet::Part> parts(chosen.size());
  checkpoint::Packer mine;
  channel.together([&] {
    for (const auto& [rank, entry] : chosen) {
      PartSet::Part& part = parts.at(static_cast<std::size_t>(rank));
      part.giver = giver_of(*entry, channel.place());
      part.memory = open_here(*entry, entries, channel.place().node);
      if (part.giver != channel.rank()) continue;
      check(part.memory.has_value(), "the rank that sends a part has it");
      const auto header = read_header(*part.memory);
      check(header.has_value(), "a valid part has a header");
      mine.number(rank).text(packed(*header));
    }
  });
  const std::vector<std::string> headers = channel.all_gather_bytes(mine.packed());
  std::optional<checkpoint::Checkpoint> checkpoint;
  channel.together([&] {
    for (const std::string& of_rank : headers) {
      for (checkpoint::Unpacker unpacker(of_rank); !unpacker.done();) {
        const auto rank = static_cast<std::size_t>(unpacker.number());
        parts.at(rank).header = unpacked(unpacker.text(), "memory");
      }
    }
    const std::string words = "memory of the hosts, step " + with_commas(chosen.begin()->second->step);
    checkpoint.emplace(std::make_shared<PartSet>(std::move(parts), words));
  });
  return std::move(*checkpoint);
}

}  // namespace

std::optional<MemoryFound> MemoryTier::find() {
  const comm::Place& place = job_.place();
  checkpoint::Packer mine;
  int turn = 0;  // each rank of a host checks a share of the files
  for (int slot = 0; slot < kGenerations; ++slot) {
    for (const std::string& path : files_in(slot_folder(slot))) {
      if (turn++ % place.local_size != place.local_rank) continue;
      Entry entry = look_at(path, options_.identity);
      entry.slot = slot, entry.node = place.node;
      if (!entry.wrong.empty()) entry.wrong = "(host " + place.host + "): " + entry.wrong;
      pack(mine, entry);
    }
  }
  std::vector<Entry> entries;
  for (const std::string& of_rank : job_.all_gather_bytes(mine.packed())) {
    for (checkpoint::Unpacker unpacker(of_rank); !unpacker.done();) entries.push_back(unpack(unpacker));
  }
  const bool says = job_.rank() == 0;
  for (const Entry& entry : entries) {
    if (says && !entry.wrong.empty())
      log::warn("a part of a checkpoint in memory is not used " + entry.wrong);
  }
  const auto found = by_checkpoint(entries);
  for (auto at = found.rbegin(); at != found.rend(); ++at) {
    const PartsByRank& parts = at->second;
    const Entry& first = *parts.begin()->second;
    if (std::ssize(parts) != first.world) {
      if (says) {
        log::info("the checkpoint of step " + with_commas(first.step) + " in memory is incomplete: " +
                  std::to_string(parts.size()) + " of " + std::to_string(first.world) + " parts are valid");
      }
      continue;
    }
    next_ = (first.slot + 1) % kGenerations;
    const bool copies = std::ranges::any_of(parts, [](const auto& part) { return part.second->copy; });
    return MemoryFound{.checkpoint = open_parts(job_, parts, entries), .other_host = copies};
  }
  return std::nullopt;
}

void MemoryTier::take(const checkpoint::CheckpointContents& contents, bool in_thread) {
  wait();
  hold_->touch();
  work_ = std::make_unique<Work>();
  Work& work = *work_;
  work.step = contents.step;
  work.slot = next_;
  const std::string name = channel_->broadcast(job_.rank() == 0 ? random_name() : "", 0);
  work.wrong = channel_->agreed([&] {
    const comm::Place& place = job_.place();
    if (place.local_rank == 0) {
      const std::vector<std::string> expected = expected_names();
      std::error_code none;
      for (const std::string& path : files_in(slot_folder(work.slot))) {
        if (std::ranges::find(expected, fs::path(path).filename().string()) == expected.end())
          fs::remove(path, none);
      }
    }
    PartFacts facts{
        .identity = options_.identity,
        .taken = name,
        .step = contents.step,
        .zero_stage = contents.zero_stage,
        .world = place.size,
        .rank = place.rank,
        .host = place.host,
        .state = place.rank == 0 ? contents.state->dump(-1, ' ', false, Json::error_handler_t::replace) : "",
        .config = place.rank == 0 ? contents.config_yaml : ""};
    work.header = lay_part_out(std::move(facts), contents.slices);
    work.memory = PartMemory::make(slot_folder(work.slot) + "/" + part_name(place.rank, place.size),
                                   work.header->file_bytes);
    copy_values(*work.memory, *work.header, contents.slices);
  });
  const auto policy = in_thread ? std::launch::async : std::launch::deferred;
  pending_ = std::async(policy, [this, &work, in_thread] {
    if (in_thread) run_thread_behind();
    return finish(work);
  });
}

Taken MemoryTier::finish(Work& work) {
  Taken taken{.step = work.step};
  const auto end = [&](std::string wrong) {
    taken.seconds = seconds_since(work.began);
    taken.wrong = std::move(wrong);
    return taken;
  };
  if (!work.wrong.empty()) return end(work.wrong);
  const std::string wrong = channel_->agreed([&] { seal_part(*work.memory, *work.header); });
  if (!wrong.empty()) return end(wrong);
  taken.whole = true;
  if (pairs_.empty()) return end("");
  const comm::Place& place = job_.place();
  const auto rounds = pair_hosts(place.nodes);
  std::string not_copied;
  for (std::size_t round = 0; round < rounds.size(); ++round) {
    const std::string why = channel_->agreed([&] {
      if (pairs_[round]->size() > 1) exchange(*pairs_[round], sends_in(rounds[round], place.node), work);
    });
    if (not_copied.empty()) not_copied = why;
  }
  taken.copied = not_copied.empty();
  return end(not_copied);
}

namespace {

/// A part that is being received from another host.
struct Coming {
  std::size_t member = 0;  ///< group member that sends it
  std::optional<PartMemory> memory;
  std::string page;  ///< its first page, written last, because it makes the part valid

  void put(std::size_t at, const std::string& bytes) {
    check(at + bytes.size() <= memory->bytes().size(), "a part has the announced length");
    const std::size_t skipped = at == 0 ? static_cast<std::size_t>(kPartPage) : 0;
    if (at == 0) page = bytes.substr(0, skipped);
    std::memcpy(memory->bytes().data() + at + skipped, bytes.data() + skipped, bytes.size() - skipped);
  }
};

// Returns whether this rank is the first of its host in a group.
bool is_first_of_host(const comm::Channel& channel, const comm::Place& place) {
  for (int member = 0; member < channel.rank(); ++member) {
    if (place.node_of[static_cast<std::size_t>(channel.rank_of_job(member))] == place.node) return false;
  }
  return true;
}

}  // namespace

std::vector<int> MemoryTier::senders(const comm::Channel& channel) const {
  std::vector<int> members;
  if (!is_first_of_host(channel, job_.place())) return members;
  const std::vector<int> kept = copied_by(job_.place());
  for (int member = 0; member < channel.size(); ++member) {
    if (std::ranges::find(kept, channel.rank_of_job(member)) != kept.end()) members.push_back(member);
  }
  return members;
}

// One round: sends this rank's part to another host, and stores the parts that this rank receives. If storing
// fails, throws Error after all messages are exchanged.
void MemoryTier::exchange(comm::Channel& channel, bool sends, Work& work) {
  const auto own = work.memory->bytes().first(static_cast<std::size_t>(sends ? work.header->file_bytes : 0));
  const std::vector<std::int64_t> sizes = channel.all_gather_int(static_cast<std::int64_t>(own.size()));
  std::optional<Error> wrong;
  const auto attempt = [&](const auto& what) {
    try {
      what();
    } catch (const Error& e) {
      if (!wrong) wrong = e;
    }
  };
  std::vector<Coming> coming;
  for (const int member : senders(channel)) {
    const std::int64_t size = sizes[static_cast<std::size_t>(member)];
    if (size == 0) continue;
    const std::string name = kCopy + part_name(channel.rank_of_job(member), job_.size());
    attempt([&] {
      coming.push_back({.member = static_cast<std::size_t>(member),
                        .memory = PartMemory::make(slot_folder(work.slot) + "/" + name, size),
                        .page = {}});
    });
  }
  const auto longest = static_cast<std::size_t>(*std::ranges::max_element(sizes));
  for (std::size_t at = 0; at < longest; at += kExchanged) {
    std::string bytes;
    if (at < own.size()) {
      const auto piece = own.subspan(at, std::min(kExchanged, own.size() - at));
      bytes.assign(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    const std::vector<std::string> all = channel.all_gather_bytes(bytes);
    for (Coming& part : coming) {
      if (!all[part.member].empty()) part.put(at, all[part.member]);
    }
  }
  for (Coming& part : coming) attempt([&] { seal_copy(*part.memory, std::as_bytes(std::span(part.page))); });
  if (wrong) throw Error(*wrong);
}

bool MemoryTier::is_ready() const {
  return pending_.valid() && pending_.wait_for(std::chrono::seconds(0)) != std::future_status::timeout;
}

std::optional<Taken> MemoryTier::wait() {
  if (!pending_.valid()) return std::nullopt;
  const Taken taken = pending_.get();
  if (taken.whole) next_ = (work_->slot + 1) % kGenerations;
  work_.reset();
  return taken;
}

void MemoryTier::forget() {
  wait();
  job_.together([&] {
    if (job_.place().local_rank != 0) return;
    for (int slot = 0; slot < kGenerations; ++slot) {
      for (const std::string& path : files_in(slot_folder(slot))) {
        std::error_code code;
        if (!fs::remove(path, code) && code)
          throw Error({.what = "cannot remove a checkpoint in memory",
                       .found = code.message(),
                       .where = path,
                       .fix = "remove it by hand"});
      }
    }
  });
}

void MemoryTier::remove() {
  wait();
  job_.together([&] {
    if (job_.place().local_rank != 0) return;
    remove_memory(options_.folder);
    remove_earlier_memory(options_.folder);
  });
}

}  // namespace octet::memory_tier
