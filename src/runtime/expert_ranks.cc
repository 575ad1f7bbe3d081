#include "expert_ranks.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "octet/base/error.h"
#include "octet/comm/mesh.h"

namespace octet::runtime {
namespace {

comm::Mesh mesh_of(int ranks, int experts) {
  return {ranks, {{.name = "data", .size = ranks / experts}, {.name = "expert", .size = experts}}};
}

[[noreturn]] void refuse(const std::string& expected, const std::string& found) {
  throw Error({.what = "expert_parallel_size does not fit the run",
               .expected = expected,
               .found = found,
               .fix = "change expert_parallel_size or the number of ranks (mpirun -np)",
               .code = ExitCode::usage});
}

/// Refuses adapters on some experts of a block: all ranks of an expert group make the same exchanges.
void require_equal_experts(const model::Architecture& a, const std::string& size) {
  const std::string experts = ".experts.";
  std::map<std::string, std::vector<model::AdapterShape>> modules;  // by name without the expert's number
  for (const auto& [module, adapter] : a.tuning.modules) {
    const std::size_t at = module.find(experts);
    if (at == std::string::npos) continue;
    const std::size_t end = module.find('.', at + experts.size());
    modules[module.substr(0, at + experts.size()) + "N" + module.substr(end)].push_back(adapter);
  }
  for (const auto& [module, adapters] : modules) {
    const bool all = std::ssize(adapters) == a.experts.count;
    if (all && std::ranges::count(adapters, adapters.front()) == std::ssize(adapters)) continue;
    throw Error(
        {.what = "adapters on some experts do not fit " + size,
         .expected = "equal adapters on all " + std::to_string(a.experts.count) + " experts of a block",
         .found = all ? "adapters of several ranks, factors or dropouts"
                      : std::to_string(adapters.size()) + " experts with adapters",
         .where = module,
         .fix = "name the modules of all experts in lora_target, or set expert_parallel_size: 1",
         .code = ExitCode::usage});
  }
}

}  // namespace

void require_expert_split(comm::Channel& job, const model::Architecture& a, std::int64_t size) {
  if (size == 1) return;
  job.together([&] {
    const std::string found = "expert_parallel_size " + std::to_string(size);
    if (a.experts.count == 0) refuse("1 for a model without experts", found);
    if (a.experts.count % size != 0)
      refuse("a divisor of the " + std::to_string(a.experts.count) + " experts of a block", found);
    if (job.size() % size != 0)
      refuse("a divisor of the number of ranks, " + std::to_string(job.size()), found);
    require_equal_experts(a, found);
  });
}

ExpertRanks::ExpertRanks(comm::Job& job, Device& device, int size, const comm::Carrying& carrying)
    : device_(device),
      is_whole_job_(size == job.size()),
      ready_(device.make_event()),
      done_(device.make_event()) {
  const comm::Mesh mesh = mesh_of(job.size(), size);
  data_ = job.collectives(mesh.group("data", job.rank()), device, carrying);
  expert_ = job.collectives(mesh.group("expert", job.rank()), device, carrying);
  counts_ = job.channel("rows of experts", mesh.group("expert", job.rank()));
}

void ExpertRanks::reserve_staging(Arena& arena) const {
  for (const comm::Collectives* group : {data_.get(), expert_.get()})
    arena.reserve("communication/experts", comm::staging_bytes(group->size(), arena.device().stands_for()));
}

std::vector<comm::Traffic> ExpertRanks::take_traffic() {
  std::vector<comm::Traffic> taken = data_->take_traffic();
  std::ranges::move(expert_->take_traffic(), std::back_inserter(taken));
  return taken;
}

std::vector<std::int32_t> ExpertRanks::gather(std::span<const std::int32_t> own) {
  const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size_bytes());
  std::vector<std::int32_t> all(own.size() * static_cast<std::size_t>(size()));
  auto* to = all.data();
  for (const std::string& of_rank : counts_->all_gather_bytes(bytes)) {
    check(of_rank.size() == own.size_bytes(), "all ranks send the numbers of all experts");
    std::memcpy(to, of_rank.data(), of_rank.size());
    to += own.size();
  }
  return all;
}

void ExpertRanks::together(const std::function<void()>& act) {
  std::string where;  // without the rank, which the session adds to an error that is not agreed
  try {
    counts_->together([&] {
      try {
        act();
      } catch (const Error& error) {
        where = error.problem().where;
        throw;
      }
    });
  } catch (const Error& error) {
    // The other groups did not agree and continue, so the rank with the message must abort the job. The other
    // ranks of this group must not: the message would be lost.
    if (is_whole_job_ || !error.problem().agreed || error.problem().what.empty()) throw;
    Problem problem = error.problem();
    problem.agreed = false;
    problem.where = where;
    throw Error(std::move(problem));
  }
}

void ExpertRanks::start(Stream& compute, const char* name, const Rows& rows) {
  const auto ranks = static_cast<std::size_t>(size()), own = static_cast<std::size_t>(rank());
  const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * rows.row_bytes; };
  std::vector<const std::byte*> from(ranks);
  std::vector<std::byte*> to(ranks);
  auto* read = static_cast<const std::byte*>(rows.from);
  auto* write = static_cast<std::byte*>(rows.to);
  for (std::size_t r = 0; r < ranks; ++r) {
    from[r] = read, to[r] = write;
    read += bytes(rows.sent[r]), write += bytes(rows.received[r]);
  }
  if (rows.sent[own] > 0) device_.copy(compute, to[own], from[own], bytes(rows.sent[own]));
  Stream& stream = expert_->gather_stream();
  compute.record(*ready_);
  stream.wait(*ready_);
  // In round d, every rank sends to its d-th right neighbour. Both ranks know whether there is a message.
  for (std::size_t d = 1; d < ranks; ++d) {
    const std::size_t target = (own + d) % ranks, source = (own + ranks - d) % ranks;
    const comm::SendArgs out{.name = name,
                             .to = static_cast<int>(target),
                             .from = from[target],
                             .bytes = static_cast<std::int64_t>(bytes(rows.sent[target]))};
    const comm::ReceiveArgs in{.name = name,
                               .from = static_cast<int>(source),
                               .to = to[source],
                               .bytes = static_cast<std::int64_t>(bytes(rows.received[source]))};
    if (out.bytes > 0 && in.bytes > 0) {
      expert_->send_receive(stream, out, in);
    } else if (out.bytes > 0) {
      expert_->send(stream, out);
    } else if (in.bytes > 0) {
      expert_->receive(stream, in);
    }
  }
  stream.record(*done_);
}

}  // namespace octet::runtime
