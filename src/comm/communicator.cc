#include "octet/comm/communicator.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "octet/base/error.h"
#include "octet/device/cpu.h"

namespace octet::comm {
namespace {

// What `work` failed with, as an Error of this rank.
std::optional<Problem> problem_of(const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    Problem problem = error.problem();
    if (problem.what.empty()) problem.what = "an error without a message";
    return problem;
  } catch (const std::bad_alloc&) {
    return Problem{.what = "out of memory",
                   .fix = "use fewer ranks on this node or a smaller model or batch"};
  } catch (const std::exception& error) {
    return Problem{.what = error.what()};
  } catch (...) {
    return Problem{.what = "an exception of unknown type"};
  }
}

}  // namespace

std::int64_t Communicator::all_min(std::int64_t value) {
  const auto values = all_gather_int(value);
  return *std::min_element(values.begin(), values.end());
}

std::int64_t Communicator::all_max(std::int64_t value) {
  const auto values = all_gather_int(value);
  return *std::max_element(values.begin(), values.end());
}

std::int64_t Communicator::all_sum(std::int64_t value) {
  const auto values = all_gather_int(value);
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

void Communicator::together(const std::function<void()>& work) {
  std::optional<Problem> mine = problem_of(work);
  // Exit code of every rank that failed; 0 says that it did not.
  const auto codes = all_gather_int(mine ? std::max(1, static_cast<int>(mine->code)) : 0);
  const auto first = std::find_if(codes.begin(), codes.end(), [](std::int64_t code) { return code != 0; });
  if (first == codes.end()) return;
  const auto code = static_cast<ExitCode>(*first);
  if (first - codes.begin() != rank()) throw Error(Problem{.what = "", .code = code, .agreed = true});
  mine->code = code;
  mine->agreed = true;
  if (size() > 1) {
    mine->where += (mine->where.empty() ? "" : ", ");
    mine->where += "rank " + std::to_string(rank()) + " on " + place().host;
  }
  throw Error(std::move(*mine));
}

bool overlap_hides(const Device& device, const Place& place) {
  const char* told = std::getenv("OCTET_OVERLAP");
  if (told != nullptr && std::string_view(told) == "always") return true;
  if (device.kind() != DeviceKind::cpu || place.nodes > 1) return true;
  return cpu::op_threads() > 1 || cpu::allowed_cores() > place.local_size;
}

}  // namespace octet::comm
