#include "octet/checkpoint/inspection.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/folder.h"
#include "octet/weights/convert.h"

namespace octet::checkpoint {

// Iteration over the values of a checkpoint's tensor, chunk by chunk.

/// The elements of one chunk.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
ElementRange range_of(const CheckpointTensor& tensor, std::int64_t chunk);

/// Returns the bytes of a range as stored.
std::vector<std::byte> read_range(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                                  const ElementRange& range, bool verify);
/// Returns elements of any dtype as doubles; exact except for int64 beyond 2^53.
std::vector<double> to_doubles(DType dtype, const std::vector<std::byte>& bytes, std::int64_t count);

/// Calls `take(first element, values)` for each range, in order.
void each_range(const Checkpoint& checkpoint, const CheckpointTensor& tensor, bool verify,
                const std::function<void(std::int64_t, const std::vector<double>&)>& take);

ElementRange range_of(const CheckpointTensor& tensor, std::int64_t chunk) {
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
  const std::int64_t begin = chunk * kChunkBytes;
  return {begin / width, std::min(kChunkBytes, tensor.bytes - begin) / width};
}

std::vector<std::byte> read_range(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                                  const ElementRange& range, bool verify) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(range.count) * size_of(tensor.dtype));
  TensorSlice slice{tensor.name, tensor.dtype, tensor.shape, range.begin, range.count, bytes.data()};
  checkpoint.read({slice}, verify);
  return bytes;
}

std::vector<double> to_doubles(DType dtype, const std::vector<std::byte>& bytes, std::int64_t count) {
  const auto n = static_cast<std::size_t>(count);
  std::vector<double> values(n);
  if (dtype == DType::f64) {
    if (n > 0) std::memcpy(values.data(), bytes.data(), n * sizeof(double));
  } else if (weights::is_float(dtype)) {
    std::vector<float> floats(n);
    weights::to_float(dtype, bytes.data(), count, floats.data());
    std::copy(floats.begin(), floats.end(), values.begin());
  } else {
    std::vector<std::int64_t> integers(n);
    weights::to_int64(dtype, bytes.data(), count, integers.data());
    std::transform(integers.begin(), integers.end(), values.begin(),
                   [](std::int64_t x) { return double(x); });
  }
  return values;
}

void each_range(const Checkpoint& checkpoint, const CheckpointTensor& tensor, bool verify,
                const std::function<void(std::int64_t, const std::vector<double>&)>& take) {
  for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
    const ElementRange range = range_of(tensor, static_cast<std::int64_t>(chunk));
    take(range.begin, to_doubles(tensor.dtype, read_range(checkpoint, tensor, range, verify), range.count));
  }
}

namespace {

TensorSummary summarise(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  TensorSummary summary;
  static_cast<weights::TensorHeader&>(summary) = static_cast<const weights::TensorHeader&>(tensor);
  summary.bytes = tensor.bytes;
  summary.hash = tensor.hash;
  double squares = 0;
  bool any = false;
  const auto take = [&](std::int64_t, const std::vector<double>& values) {
    for (const double x : values) {
      if (!std::isfinite(x)) {
        ++summary.not_finite;
        continue;
      }
      squares += x * x;
      summary.low = any ? std::min(summary.low, x) : x;
      summary.high = any ? std::max(summary.high, x) : x;
      any = true;
    }
  };
  const auto read_all = [&](bool verify) {
    squares = 0;
    summary.not_finite = 0;
    any = false;
    each_range(checkpoint, tensor, verify, take);
  };
  try {
    read_all(true);
  } catch (const Error& e) {
    summary.problem = e.what();
    read_all(false);
  }
  summary.l2 = std::sqrt(squares);
  return summary;
}

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", x);
  return text;
}

std::string padded(const std::string& text, std::size_t width, bool right = false) {
  const std::string blanks(width > text.size() ? width - text.size() : 0, ' ');
  return right ? blanks + text : text + blanks;
}

// Returns a table with columns as wide as their widest cell. `right`: per column, whether it is
// right-aligned.
std::string table(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right) {
  std::vector<std::size_t> widths(right.size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += (i ? "  " : "") + padded(row[i], widths[i], right[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

bool matches(const std::string& name, const std::string& filter) {
  if (filter.find_first_of("*?[") == std::string::npos) return name.find(filter) != std::string::npos;
  return ::fnmatch(filter.c_str(), name.c_str(), 0) == 0;
}

Inspection inspect(const std::string& path, const std::string& filter, bool verify_all) {
  const Checkpoint checkpoint(path);
  const Manifest& manifest = checkpoint.manifest();
  require_own_name(path, manifest.step);
  Inspection inspection{.path = path,
                        .step = manifest.step,
                        .world = manifest.world,
                        .zero_stage = manifest.zero_stage,
                        .file_bytes = manifest.file_bytes,
                        .config_yaml = checkpoint.config_yaml(),
                        .state = checkpoint.state(),
                        .tensors_in_all = static_cast<std::int64_t>(manifest.tensors.size())};
  for (const auto& tensor : manifest.tensors) {
    if (matches(tensor.name, filter)) {
      inspection.tensors.push_back(summarise(checkpoint, tensor));
      ++inspection.tensors_verified;
      const std::string& problem = inspection.tensors.back().problem;
      if (!problem.empty()) inspection.problems.push_back(problem);
    } else if (verify_all) {
      ++inspection.tensors_verified;
      try {
        each_range(checkpoint, tensor, true, [](std::int64_t, const std::vector<double>&) {});
      } catch (const Error& e) {
        inspection.problems.emplace_back(e.what());
      }
    }
  }
  return inspection;
}

std::string render(const Inspection& inspection, bool with_config) {
  std::string text = "checkpoint  " + inspection.path + "\nstep        " + with_commas(inspection.step) +
                     "\nwritten by  " + std::to_string(inspection.world) + " ranks, ZeRO stage " +
                     std::to_string(inspection.zero_stage) + "\nsize        " +
                     human_bytes(static_cast<double>(inspection.file_bytes)) + "\nstate       " +
                     inspection.state->dump(-1, ' ', false, Json::error_handler_t::replace) + "\n\n";
  std::vector<std::vector<std::string>> rows{
      {"tensor", "dtype", "shape", "bytes", "norm", "min", "max", "hash"}};
  for (const auto& tensor : inspection.tensors) {
    rows.push_back({tensor.name, std::string(name_of(tensor.dtype)), weights::shape_text(tensor.shape),
                    with_commas(tensor.bytes), number(tensor.l2), number(tensor.low), number(tensor.high),
                    tensor.hash +
                        (tensor.not_finite ? "  " + with_commas(tensor.not_finite) + " not finite" : "") +
                        (tensor.problem.empty() ? "" : "  DAMAGED")});
  }
  text += table(rows, {false, false, false, true, true, true, true, false});
  if (with_config) text += "\nconfig\n" + inspection.config_yaml;
  if (!text.ends_with('\n')) text += '\n';
  for (const auto& problem : inspection.problems) text += "\n" + problem + "\n";
  text += "\nintegrity   manifest, HDF5 metadata, state and config are valid; " +
          with_commas(inspection.tensors_verified) + " of " + with_commas(inspection.tensors_in_all) +
          " tensors hashed, " +
          (inspection.problems.empty()
               ? "all valid"
               : with_commas(static_cast<std::int64_t>(inspection.problems.size())) + " DAMAGED") +
          "\n";
  return text;
}

Json to_json(const Inspection& inspection) {
  Json json;
  json["path"] = inspection.path;
  json["step"] = inspection.step;
  json["world"] = inspection.world;
  json["zero_stage"] = inspection.zero_stage;
  json["bytes"] = inspection.file_bytes;
  json["integrity"] = {{"ok", inspection.problems.empty()},
                       {"verified", inspection.tensors_verified},
                       {"of", inspection.tensors_in_all},
                       {"problems", inspection.problems}};
  json["state"] = *inspection.state;
  json["config"] = inspection.config_yaml;
  json["tensors"] = Json::array();
  for (const auto& tensor : inspection.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", name_of(tensor.dtype)},
                               {"shape", tensor.shape},
                               {"bytes", tensor.bytes},
                               {"l2", tensor.l2},
                               {"min", tensor.low},
                               {"max", tensor.high},
                               {"not_finite", tensor.not_finite},
                               {"hash", tensor.hash}});
  }
  return json;
}

namespace {

TensorDifference compare(const Checkpoint& a, const Checkpoint& b, const CheckpointTensor& x,
                         const CheckpointTensor& y) {
  TensorDifference difference{.name = x.name, .of = element_count(x.shape, x.name)};
  if (x.hash == y.hash) return difference;
  if (x.shape != y.shape || x.dtype != y.dtype) {
    difference.comparison = x.shape != y.shape ? Comparison::other_shape : Comparison::other_dtype;
    difference.detail = std::string(name_of(x.dtype)) + " " + weights::shape_text(x.shape) + ", " +
                        std::string(name_of(y.dtype)) + " " + weights::shape_text(y.shape);
    return difference;
  }
  difference.comparison = Comparison::different;
  for (std::size_t chunk = 0; chunk < x.chunks.size(); ++chunk) {
    if (x.chunks[chunk] == y.chunks[chunk]) continue;
    const ElementRange range = range_of(x, static_cast<std::int64_t>(chunk));
    const auto left = read_range(a, x, range, true), right = read_range(b, y, range, true);
    const auto values = to_doubles(x.dtype, left, range.count),
               others = to_doubles(y.dtype, right, range.count);
    const std::size_t width = size_of(x.dtype);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::equal(left.begin() + static_cast<std::ptrdiff_t>(i * width),
                     left.begin() + static_cast<std::ptrdiff_t>((i + 1) * width),
                     right.begin() + static_cast<std::ptrdiff_t>(i * width))) {
        continue;
      }
      ++difference.count;
      const double distance = std::abs(values[i] - others[i]);
      difference.max_abs = std::isnan(distance) ? INFINITY : std::max(difference.max_abs, distance);
    }
  }
  return difference;
}

const char* word(Comparison comparison) {
  switch (comparison) {
    case Comparison::identical:
      return "identical";
    case Comparison::different:
      return "different";
    case Comparison::other_shape:
      return "other shape";
    case Comparison::other_dtype:
      return "other dtype";
    case Comparison::only_in_first:
      return "only in the first";
    case Comparison::only_in_second:
      return "only in the second";
  }
  return "";
}

}  // namespace

std::int64_t Difference::count(Comparison comparison) const {
  return std::count_if(tensors.begin(), tensors.end(),
                       [comparison](const TensorDifference& t) { return t.comparison == comparison; });
}

bool Difference::identical() const {
  return count(Comparison::identical) == static_cast<std::int64_t>(tensors.size());
}

Difference diff(const std::string& first, const std::string& second, const std::string& filter) {
  const Checkpoint a(first), b(second);
  require_own_name(first, a.step());
  require_own_name(second, b.step());
  Difference difference{.first = first, .second = second, .first_step = a.step(), .second_step = b.step()};
  for (const auto& tensor : a.tensors()) {
    if (!matches(tensor.name, filter)) continue;
    if (const CheckpointTensor* other = b.find(tensor.name)) {
      difference.tensors.push_back(compare(a, b, tensor, *other));
    } else {
      difference.tensors.push_back({.name = tensor.name, .comparison = Comparison::only_in_first});
    }
  }
  for (const auto& tensor : b.tensors()) {
    if (matches(tensor.name, filter) && a.find(tensor.name) == nullptr)
      difference.tensors.push_back({.name = tensor.name, .comparison = Comparison::only_in_second});
  }
  std::sort(difference.tensors.begin(), difference.tensors.end(),
            [](const TensorDifference& x, const TensorDifference& y) { return x.name < y.name; });
  return difference;
}

std::string render(const Difference& difference) {
  std::string text = "first   " + difference.first + " (step " + with_commas(difference.first_step) +
                     ")\nsecond  " + difference.second + " (step " + with_commas(difference.second_step) +
                     ")\n\n";
  std::vector<std::vector<std::string>> rows{{"tensor", "comparison", "max abs", "elements", ""}};
  for (const auto& tensor : difference.tensors) {
    if (tensor.comparison == Comparison::identical) continue;
    const bool differs = tensor.comparison == Comparison::different;
    rows.push_back({tensor.name, word(tensor.comparison), differs ? number(tensor.max_abs) : "",
                    differs ? with_commas(tensor.count) + " of " + with_commas(tensor.of) : "",
                    tensor.detail});
  }
  if (rows.size() > 1) text += table(rows, {false, false, true, true, false}) + "\n";
  text += with_commas(difference.count(Comparison::identical)) + " of " +
          with_commas(static_cast<std::int64_t>(difference.tensors.size())) + " tensors are identical" +
          (difference.identical() ? ": the training state agrees in every bit\n" : "\n");
  return text;
}

Json to_json(const Difference& difference) {
  Json json;
  json["first"] = difference.first;
  json["second"] = difference.second;
  json["identical"] = difference.identical();
  json["tensors"] = Json::array();
  for (const auto& tensor : difference.tensors) {
    Json entry{{"name", tensor.name}, {"comparison", word(tensor.comparison)}};
    if (tensor.comparison == Comparison::different) {
      entry["count"] = tensor.count;
      entry["of"] = tensor.of;
      if (std::isfinite(tensor.max_abs))
        entry["max_abs"] = tensor.max_abs;
      else
        entry["max_abs"] = nullptr;  // JSON has no infinity
    }
    if (!tensor.detail.empty()) entry["detail"] = tensor.detail;
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace octet::checkpoint
