#include "row_work.h"

#include <re2/re2.h>

#include <algorithm>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/feed/routing_file.h"
#include "octet/text/rouge.h"
#include "output_files.h"

namespace octet::answers {
namespace {

// Returns the text after the last thought of an answer. An unclosed thought leaves no text.
std::string_view behind_thoughts(std::string_view answer) {
  constexpr std::string_view kEnd = "</think>";
  const std::size_t end = answer.rfind(kEnd);
  if (end != std::string_view::npos) return answer.substr(end + kEnd.size());
  return answer.find("<think>") == std::string_view::npos ? answer : std::string_view();
}

}  // namespace

Extraction::Extraction(const std::string& pattern, const std::vector<std::string>& allow)
    : pattern_(std::make_unique<re2::RE2>(pattern, re2::RE2::Quiet)), allow_(allow) {
  if (!pattern_->ok()) {
    throw Error({.what = "--extract is not a valid regular expression",
                 .found = pattern + " (" + pattern_->error() + ")",
                 .where = "command line",
                 .fix = "write it in RE2's syntax (github.com/google/re2/wiki/Syntax)",
                 .code = ExitCode::usage});
  }
  if (pattern_->NumberOfCapturingGroups() < 1) {
    throw Error({.what = "--extract has no group",
                 .expected = "parentheses around the wanted text, as in \"Final Answer: (\\w{2})\"",
                 .found = pattern,
                 .where = "command line",
                 .fix = "put parentheses around the part that is the answer",
                 .code = ExitCode::usage});
  }
}

Extraction::~Extraction() = default;
Extraction::Extraction(Extraction&&) noexcept = default;

std::optional<std::string> Extraction::operator()(const std::string& answer) const {
  const std::string_view said = behind_thoughts(answer);
  re2::StringPiece rest(said.data(), said.size());
  std::optional<std::string> last;
  std::string found;
  while (true) {
    const char* before = rest.data();
    if (!re2::RE2::FindAndConsume(&rest, *pattern_, &found)) break;
    last = std::string(trim(found));
    if (rest.data() == before && !rest.empty()) rest.remove_prefix(1);  // the pattern matches the empty text
    if (rest.empty()) break;
  }
  if (last && !allow_.empty() && std::ranges::find(allow_, *last) == allow_.end()) return std::nullopt;
  return last;
}

namespace {

constexpr std::string_view kPlace = "{text}";

Json pairs(const std::vector<generate::TokenScore>& best) {
  Json list = Json::array();
  for (const auto& [id, logprob] : best) list.push_back(Json::array({id, logprob}));
  return list;
}

Json lists(const std::vector<std::vector<generate::TokenScore>>& tops) {
  Json list = Json::array();
  for (const auto& best : tops) list.push_back(pairs(best));
  return list;
}

std::string dumped(const Json& line) {
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

RowWork::RowWork(Answerer& answerer, const QuestionFile& file, const GenerateOptions& options)
    : answerer_(answerer), file_(file), options_(options) {
  if (options.extract) extraction_.emplace(*options.extract, options.allow);
  if (options.prompt_file.empty()) return;
  prompt_text_ = read_file(options.prompt_file);
  if (prompt_text_.find(kPlace) == std::string::npos) {
    throw Error({.what = "the prompt has no placeholder for the text of a row",
                 .expected = std::string(kPlace) + " where the text belongs",
                 .where = options.prompt_file,
                 .fix = "write " + std::string(kPlace) + " into the prompt",
                 .code = ExitCode::usage});
  }
}

RowWork::~RowWork() = default;

std::int64_t RowWork::room() const {
  if (options_.score) return 1 - std::ssize(open_);
  const std::int64_t places = std::max<std::int64_t>(1, options_.batch / options_.samples);
  return std::max<std::int64_t>(0, places + lately_ - std::ssize(open_));
}

std::vector<RowWork::Done> RowWork::take_done() {
  lately_ = std::ssize(done_);
  return std::exchange(done_, {});
}

// Returns the question with the prompt file's text around it.
Question RowWork::asked(const Question& question) const {
  if (prompt_text_.empty() || question.turns.empty()) return question;
  Question with = question;
  std::string text = prompt_text_;
  for (std::size_t at = text.find(kPlace); at != std::string::npos;
       at = text.find(kPlace, at + question.text().size())) {
    text.replace(at, kPlace.size(), question.text());
  }
  with.turns.back().content = text;
  return with;
}

void RowWork::begin(std::int64_t number) {
  std::optional<Question> question;
  try {
    question = file_.read(number);
  } catch (const Error& e) {
    // A failing disk is not a fault of the row.
    if (e.code() == ExitCode::storage) throw;
    return fail(number, e);
  }
  try {
    Row row{.number = number, .question = std::move(*question), .prompt = {}, .said = {}};
    if (options_.score) {
      row.prompt = answerer_.whole(row.question);
    } else {
      row.prompt = answerer_.prompt(asked(row.question));
    }
    row.said.resize(static_cast<std::size_t>(options_.samples));
    row.missing = options_.samples;
    Row& kept = open_.emplace(number, std::move(row)).first->second;
    for (std::int64_t sample = 0; !options_.score && sample < options_.samples; ++sample)
      submit(kept, sample, 0);
  } catch (const Error& e) {
    if (e.code() != ExitCode::usage) throw;
    fail(number, e);
  }
}

void RowWork::submit(Row& row, std::int64_t sample, std::int64_t retry) {
  const std::size_t request = answerer_.submit(row.prompt, file_.number(row.number), sample, retry);
  tickets_.emplace(request, Ticket{row.number, sample, retry});
  ++row.attempts;
}

void RowWork::fail(std::int64_t row, const std::string& why) {
  const auto found = open_.find(row);
  Done done{.row = row, .result = {.lines = {}, .failure = file_.where(row) + ": " + why}};
  if (found != open_.end()) {
    done.attempts = found->second.attempts;
    open_.erase(found);
  }
  done_.push_back(std::move(done));
}

void RowWork::fail(std::int64_t row, const Error& error) {
  const Problem& problem = error.problem();
  fail(row, problem.what + (problem.found.empty() ? "" : " (" + problem.found + ")"));
}

void RowWork::step() {
  if (options_.score) {
    while (!open_.empty()) score(open_.begin()->first);
    return;
  }
  for (Answerer::Finished& finished : answerer_.step()) {
    const auto found = tickets_.find(finished.request);
    const Ticket ticket = found->second;
    tickets_.erase(found);
    const auto open = open_.find(ticket.row);
    if (open == open_.end()) continue;  // another sample of the row has failed
    Row& row = open->second;
    if (extraction_) {
      std::optional<std::string> part = (*extraction_)(finished.said.text);
      if (!part && ticket.retry < options_.retries) {
        submit(row, ticket.sample, ticket.retry + 1);
        continue;
      }
      if (!part) {
        fail(ticket.row,
             "nothing was extracted from the answer in " + std::to_string(ticket.retry + 1) + " attempts");
        continue;
      }
      finished.said.text = *part;
    }
    row.said[static_cast<std::size_t>(ticket.sample)] = std::move(finished.said);
    if (--row.missing == 0) finish(row);
  }
}

void RowWork::score(std::int64_t number) {
  const Row& row = open_.at(number);
  try {
    const generate::Decoder::Score score = answerer_.score(row.prompt);
    std::string text;
    if (options_.hdf5) {
      text = score_note(row.prompt, score, answerer_.best());
    } else {
      Json line{{"ids", row.prompt}, {"logprobs", score.logprobs}};
      if (options_.best > 0) line["top_logprobs"] = lists(score.top);
      text = dumped(line);
    }
    done_.push_back({.row = number, .result = {.lines = {std::move(text)}, .failure = ""}, .attempts = 1});
    open_.erase(number);
  } catch (const generate::NotFinite&) {
    throw;  // the model causes it, not the row
  } catch (const Error& e) {
    if (e.code() != ExitCode::usage) throw;
    fail(number, e);
  }
}

// Returns a row in the format of a data set. Rows of ids give ids again.
std::string RowWork::line(const Row& row, const Said& said) const {
  Json line = Json::object();
  const generate::Answer& answer = said.answer;
  const bool ids = row.question.turns.empty();
  if (ids) {
    line["prompt_ids"] = row.prompt;
  } else if (options_.out.empty()) {
    line["question"] = row.question.text();
    line["answer"] = said.text;
  } else if (row.question.plain && !answerer_.chats()) {
    line["text"] = row.question.text() + said.text;
  } else {
    Json messages = Json::array();
    if (!row.question.system.empty())
      messages.push_back({{"role", "system"}, {"content", row.question.system}});
    for (const data::Turn& turn : row.question.turns) {
      const std::string role = turn.role == "observation" ? "tool"
                               : turn.role == "function"  ? "function_call"
                                                          : turn.role;
      Json message{{"role", role}, {"content", turn.content}};
      if (!turn.text.empty())
        message = {{"role", "assistant"}, {"content", turn.text}, {"tool_calls", turn.content}};
      if (!turn.thought.empty()) message["reasoning_content"] = turn.thought;
      if (!turn.trained) message["weight"] = 0;
      messages.push_back(std::move(message));
    }
    messages.push_back({{"role", "assistant"}, {"content", said.text}});
    line["messages"] = std::move(messages);
    if (!row.question.tools.empty()) line["tools"] = row.question.tools;
    if (row.question.enable_thinking) line["enable_thinking"] = *row.question.enable_thinking;
  }
  if (ids || options_.answers.logprobs >= 0) line["output_ids"] = answer.ids;
  if (options_.answers.logprobs >= 0) line["logprobs"] = answer.logprobs;
  if (options_.answers.logprobs > 0) line["top_logprobs"] = lists(answer.top);
  if (ids || !options_.out.empty()) line["finish_reason"] = generate::to_string(answer.finish);
  if (row.question.has_answer) {
    line["expected"] = row.question.answer;
    line["exact_match"] = trim(said.text) == trim(row.question.answer);
    if (options_.rouge_l) line["rouge_l"] = text::rouge_l(said.text, row.question.answer);
  }
  return dumped(line);
}

void RowWork::finish(Row& row) {
  Done done{.row = row.number, .judged = row.question.has_answer, .attempts = row.attempts};
  for (const std::optional<Said>& said : row.said) {
    done.result.lines.push_back(line(row, *said));
    if (options_.save_routing.empty()) continue;
    std::vector<std::int32_t> ids = row.prompt;
    ids.insert(ids.end(), said->answer.ids.begin(), said->answer.ids.end());
    done.routing.push_back(feed::routing_line(ids, said->answer.experts));
  }
  done.right = done.judged && trim(row.said.front()->text) == trim(row.question.answer);
  if (done.judged && options_.rouge_l)
    done.rouge_l = text::rouge_l(row.said.front()->text, row.question.answer);
  done_.push_back(std::move(done));
  open_.erase(row.number);
}

}  // namespace octet::answers
