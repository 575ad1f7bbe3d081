#include "octet/feed/teacher_file.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/base/error.h"
#include "octet/base/files.h"

namespace octet::feed {
namespace {

using checkpoint::Array;
using checkpoint::ArrayType;

constexpr const char* kScores = "octet scores";
constexpr const char* kWriteAgain =
    "write it with trainer generate TEACHER --score --logprobs K --out FILE.h5";

template <typename Id>
std::uint64_t token_hash(std::span<const Id> ids) {
  std::uint64_t hash = 0;
  for (const Id id : ids) hash = runtime::mixed(hash, static_cast<std::uint32_t>(id));
  return hash;
}

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

void TeacherFile::refuse(const std::string& what, const std::string& expected, const std::string& found,
                         const std::string& fix) const {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = path_ + "; configuration key 'teacher_logprobs'",
               .fix = fix,
               .code = ExitCode::usage});
}

void TeacherFile::refuse_damaged(const std::string& found) const {
  refuse("the file of the teacher is damaged", "the file of 'trainer generate --score --logprobs K'", found,
         kWriteAgain);
}

template <typename T>
std::span<const T> TeacherFile::values(const char* name) const {
  const std::string& bytes = file_.arrays.at(name).bytes;
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

TeacherFile::TeacherFile(const std::string& path, const TeacherUse& use) : path_(path), use_(use) {
  try {
    file_ = checkpoint::read_arrays_file(read_file(path), path);
  } catch (const Error& e) {
    if (e.code() != ExitCode::usage) throw;
    refuse(e.problem().what, "the file of 'trainer generate --score --logprobs K'", e.problem().found,
           kWriteAgain);
  }
  if (file_.texts["format"] != kScores || file_.numbers["version"] != 1)
    refuse("the file of the teacher has no scores", "scores as HDF5", "another format", kWriteAgain);
  const std::int64_t vocabulary = file_.numbers["vocabulary"];
  if (vocabulary != use.vocabulary) {
    refuse("the teacher has another vocabulary than the model", std::to_string(use.vocabulary) + " tokens",
           std::to_string(vocabulary) + " tokens", "score the data with a teacher of the same vocabulary");
  }
  best_ = file_.numbers["best"];
  if (best_ < use.ranks) {
    const std::string wanted = std::to_string(use.ranks);
    refuse("the teacher lists fewer tokens than kd_topk", "at least " + wanted + " tokens at each place",
           std::to_string(best_),
           (best_ > 0 ? "set kd_topk: " + std::to_string(best_) + ", or " : "") +
               "score the data again with --logprobs " + wanted);
  }
  check_arrays();
  index_rows();
}

std::string TeacherFile::tokenizer() const {
  const auto found = file_.texts.find("tokenizer");
  return found == file_.texts.end() ? "" : found->second;
}

void TeacherFile::check_arrays() const {
  const auto has = [&](const char* name, ArrayType type, std::size_t dimensions) {
    const auto found = file_.arrays.find(name);
    return found != file_.arrays.end() && found->second.type == type &&
           found->second.shape.size() == dimensions;
  };
  if (!has("offsets", ArrayType::i64, 1) || !has("logprob_offsets", ArrayType::i64, 1) ||
      !has("ids", ArrayType::u32, 1) || !has("top_ids", ArrayType::u32, 2) ||
      !has("top_logprobs", ArrayType::f16, 2) || !has("rest", ArrayType::f32, 1))
    refuse_damaged("missing datasets");
  const auto offsets = values<std::int64_t>("offsets"), places = values<std::int64_t>("logprob_offsets");
  const auto tokens = std::ssize(values<std::uint32_t>("ids"));
  const auto entries = std::ssize(values<float>("rest"));
  const std::vector<std::int64_t> shape{entries, best_};
  if (file_.arrays.at("top_ids").shape != shape || file_.arrays.at("top_logprobs").shape != shape ||
      offsets.empty() || offsets.size() != places.size() || offsets[0] != 0 || places[0] != 0 ||
      offsets.back() != tokens || places.back() != entries)
    refuse_damaged("datasets of other lengths");
  for (std::size_t r = 0; r + 1 < offsets.size(); ++r) {
    const std::int64_t length = offsets[r + 1] - offsets[r];
    if (length < 1 || places[r + 1] - places[r] != length - 1) refuse_damaged("rows of other lengths");
  }
}

void TeacherFile::index_rows() {
  const auto offsets = values<std::int64_t>("offsets");
  const auto ids = values<std::uint32_t>("ids");
  for (std::size_t r = 0; r + 1 < offsets.size(); ++r)
    rows_[token_hash(ids.subspan(index(offsets[r]), index(offsets[r + 1] - offsets[r])))] =
        static_cast<std::int64_t>(r);
}

std::int64_t TeacherFile::at(std::span<const std::int32_t> ids, std::int64_t row) const {
  const auto offsets = values<std::int64_t>("offsets");
  if (const auto found = rows_.find(token_hash(ids)); found != rows_.end()) {
    const std::size_t begin = index(offsets[index(found->second)]);
    const std::size_t count = index(offsets[index(found->second) + 1]) - begin;
    const auto tokens = values<std::uint32_t>("ids").subspan(begin, count);
    if (std::ranges::equal(tokens, ids, {}, {},
                           [](std::int32_t id) { return static_cast<std::uint32_t>(id); }))
      return found->second;
  }
  throw Error({.what = "row " + std::to_string(row) + " of the data has no row in the file of the teacher",
               .expected = "a row of the file with the same tokens",
               .found = std::to_string(ids.size()) + " tokens, which are none of the " +
                        std::to_string(offsets.size() - 1) + " rows of the file",
               .where = path_ + "; configuration key 'teacher_logprobs'",
               .fix = "score the same data with the tokenizer and the template of this run, and with a "
                      "cutoff_len that cuts no row",
               .code = ExitCode::usage});
}

void TeacherFile::require(const data::Encoded& set) const {
  for (std::int64_t d = 0; d < set.documents(); ++d) {
    at(set.ids.span().subspan(index(set.begins[index(d)]), index(set.length(d))), set.rows[index(d)]);
  }
}

void TeacherFile::take(std::int64_t entry, runtime::HostBatch& batch) const {
  const std::size_t begin = index(entry * best_), ranks = index(use_.ranks);
  const auto ids = values<std::uint32_t>("top_ids").subspan(begin, index(best_));
  const auto logprobs = values<std::uint16_t>("top_logprobs").subspan(begin, index(best_));
  double rest = values<float>("rest")[index(entry)];
  std::vector<std::uint32_t> sorted(ids.begin(), ids.end());
  std::ranges::sort(sorted);
  if (sorted.back() >= static_cast<std::uint64_t>(use_.vocabulary) ||
      std::ranges::adjacent_find(sorted) != sorted.end())
    refuse_damaged("a token that is listed twice, or outside the vocabulary");
  if (!(rest >= 0 && rest <= 1)) refuse_damaged("a rest that is no probability");
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const float logprob = from_f16(logprobs[k]);
    // Rounding to f16 may give a little more than 0.
    if (!(std::isfinite(logprob) && logprob < 0.01f)) refuse_damaged("a log-probability that is no number");
    if (k >= ranks) {
      rest += std::exp(static_cast<double>(logprob));
      continue;
    }
    batch.teacher_ids.push_back(static_cast<std::int32_t>(ids[k]));
    batch.teacher_logprobs.push_back(logprob);
  }
  batch.teacher_rest.push_back(static_cast<float>(std::min(1.0, rest)));
}

void TeacherFile::add_to(runtime::HostBatch& batch) const {
  const auto places = values<std::int64_t>("logprob_offsets");
  const std::span<const std::int32_t> ids = batch.ids;
  auto label = batch.label_rows.begin();
  std::size_t document = 0;
  for (std::size_t begin = 0; begin < ids.size(); ++document) {
    std::size_t end = begin + 1;
    while (end < ids.size() && batch.positions[end] != 0) ++end;
    const std::int64_t row = at(ids.subspan(begin, end - begin), batch.rows.at(document));
    for (; label != batch.label_rows.end() && index(*label) < end; ++label)
      take(places[index(row)] + *label - static_cast<std::int64_t>(begin), batch);
    begin = end;
  }
}

}  // namespace octet::feed
