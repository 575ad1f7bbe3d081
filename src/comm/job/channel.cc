#include "octet/comm/channel.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>

#include "octet/base/error.h"

namespace octet::comm {
namespace {

// Runs `work`. Returns its failure as a problem of this rank, or nothing.
std::optional<Problem> problem_in(const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (const std::exception& error) {
    Problem problem = problem_of(error).value_or(Problem{.what = error.what()});
    if (problem.what.empty() && !problem.agreed) problem.what = "an error without a message";
    return problem;
  } catch (...) {
    return Problem{.what = "an exception of unknown type"};
  }
}

}  // namespace

std::vector<std::int64_t> Channel::all_gather_int(std::int64_t value) {
  std::vector<std::int64_t> values;
  for (const auto& bytes : all_gather_bytes({reinterpret_cast<const char*>(&value), sizeof value})) {
    check(bytes.size() == sizeof value, "every rank sends one integer");
    std::memcpy(&values.emplace_back(), bytes.data(), sizeof value);
  }
  return values;
}

std::int64_t Channel::all_min(std::int64_t value) {
  const auto values = all_gather_int(value);
  return *std::min_element(values.begin(), values.end());
}

std::int64_t Channel::all_max(std::int64_t value) {
  const auto values = all_gather_int(value);
  return *std::max_element(values.begin(), values.end());
}

std::int64_t Channel::all_sum(std::int64_t value) {
  const auto values = all_gather_int(value);
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

void Channel::together(const std::function<void()>& work) {
  std::optional<Problem> mine = problem_in(work);
  // Exit code of every rank that failed; 0 says that it did not.
  const auto codes = all_gather_int(mine ? std::max(1, static_cast<int>(mine->code)) : 0);
  const auto first = std::find_if(codes.begin(), codes.end(), [](std::int64_t code) { return code != 0; });
  if (first == codes.end()) return;
  // An inner call agreed on the error, and named the place.
  if (mine && mine->agreed) throw Error(std::move(*mine));
  const auto code = static_cast<ExitCode>(*first);
  if (first - codes.begin() != rank()) throw Error(Problem{.what = "", .code = code, .agreed = true});
  mine->code = code;
  mine->agreed = true;
  if (size() > 1) {
    mine->where += (mine->where.empty() ? "" : ", ");
    mine->where += "rank " + std::to_string(rank_of_job(rank()));
    if (!place().host.empty()) mine->where += " on " + place().host;  // ranks of a plan have no host
  }
  throw Error(std::move(*mine));
}

std::string Channel::agreed(const std::function<void()>& attempt) {
  std::string trouble;
  try {
    attempt();
  } catch (const Error& error) {
    trouble = error.problem().what.empty() ? "an error without a message" : error.problem().what;
    if (!error.problem().found.empty()) trouble += ": " + error.problem().found;
  }
  const auto all = all_gather_bytes(trouble);
  for (int rank = 0; rank < size(); ++rank) {
    const std::string& said = all[static_cast<std::size_t>(rank)];
    if (!said.empty()) return "rank " + std::to_string(rank_of_job(rank)) + ": " + said;
  }
  return {};
}

}  // namespace octet::comm
