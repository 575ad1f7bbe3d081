#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <sstream>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/config/key_table.h"
#include "option_error.h"

namespace octet::cli {

namespace {

thread_local CommandText* text_described = nullptr;

// CLI::Range with a fixed message, because CLI11's message differs between versions.
template <typename T>
class Range : public CLI::Range {
 public:
  Range(T least, T most) : CLI::Range(least, most) {
    func_ = [least, most](const std::string& word) {
      T value{};
      if (CLI::detail::lexical_cast(word, value) && value >= least && value <= most) return std::string();
      std::ostringstream said;
      said << "Value " << word << " not in range " << least << " to " << most;
      return said.str();
    };
  }
};

// CLI11's validators for these ranges name the largest number as an upper bound.
class FromZero : public CLI::Validator {
 public:
  explicit FromZero(bool zero) : CLI::Validator(zero ? "NONNEGATIVE" : "POSITIVE") {
    func_ = [zero](const std::string& word) {
      double value{};
      const bool number = CLI::detail::lexical_cast(word, value) && std::isfinite(value);
      if (number && (zero ? value >= 0 : value > 0)) return std::string();
      return "Value " + word + " is no finite number " + (zero ? "of at least 0" : "above 0");
    };
  }
};

// Returns the configuration keys of Octet and of other trainers' files.
const std::vector<std::string>& key_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = config::field_names();
    for (const config::ForeignKey& key : config::dialect_keys()) all.push_back(key.path);
    return all;
  }();
  return names;
}

// Whether a word is a configuration key: "--learning-rate" or "+trainer.seed=3".
bool is_key(const std::string& word) {
  std::string key = word.substr(0, word.find('='));
  key.erase(0, key.find_first_not_of("-+"));
  std::ranges::replace(key, '-', '_');
  return std::ranges::find(key_names(), key) != key_names().end();
}

}  // namespace

Describing::Describing(CommandText& to) {
  text_described = &to;
}

Describing::~Describing() {
  text_described = nullptr;
}

Option& Option::check(const Check& what) {
  switch (what.kind) {
    case Check::Kind::whole_range:
      parsed_->check(Range(what.least, what.most));
      break;
    case Check::Kind::range:
      parsed_->check(Range(what.from, what.to));
      break;
    case Check::Kind::at_least_zero:
      parsed_->check(FromZero(true));
      break;
    case Check::Kind::above_zero:
      parsed_->check(FromZero(false));
      break;
    case Check::Kind::words:
      parsed_->check(CLI::IsMember(what.choices));
      break;
    case Check::Kind::words_in_any_case:
      parsed_->transform(CLI::IsMember(what.choices, CLI::ignore_case));
      break;
  }
  return *this;
}

Option& Option::shows_default() {
  parsed_->capture_default_str();
  return *this;
}

Option& Option::required() {
  parsed_->required();
  return *this;
}

Option& Option::repeated() {
  parsed_->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return *this;
}

Option& Option::takes_all() {
  parsed_->take_all();
  return *this;
}

Option& Option::split_at(char letter) {
  parsed_->delimiter(letter);
  return *this;
}

Option& Option::needs(const std::string& name) {
  parsed_->needs(name);
  return *this;
}

std::size_t Option::count() const {
  return parsed_->count();
}

std::string Option::name() const {
  return parsed_->get_name();
}

Options::Options(const std::string& name, const std::string& summary)
    : app_(std::make_unique<CLI::App>(summary, "trainer " + name)), name_(name) {
  app_->allow_extras();
  app_->set_help_flag("-h,--help", "print this and exit");
}

Options::~Options() = default;

template <typename T>
Option& Options::add_option(const std::string& names, T& value, const std::string& description) {
  CLI::Option* option = app_->add_option(names, value, description);
  // An option that may be given several times takes one word each time, not the words of MODEL or QUESTION.
  if (names.starts_with('-')) option->allow_extra_args(false);
  return added_.emplace_back(option);
}
template Option& Options::add_option(const std::string&, bool&, const std::string&);
template Option& Options::add_option(const std::string&, std::int32_t&, const std::string&);
template Option& Options::add_option(const std::string&, std::int64_t&, const std::string&);
template Option& Options::add_option(const std::string&, std::uint64_t&, const std::string&);
template Option& Options::add_option(const std::string&, float&, const std::string&);
template Option& Options::add_option(const std::string&, double&, const std::string&);
template Option& Options::add_option(const std::string&, std::optional<std::int64_t>&, const std::string&);
template Option& Options::add_option(const std::string&, std::optional<double>&, const std::string&);
template Option& Options::add_option(const std::string&, std::string&, const std::string&);
template Option& Options::add_option(const std::string&, std::vector<std::int32_t>&, const std::string&);
template Option& Options::add_option(const std::string&, std::vector<std::string>&, const std::string&);

Option& Options::add_flag(const std::string& names, bool& value, const std::string& description) {
  return added_.emplace_back(app_->add_flag(names, value, description));
}

void Options::last_value_counts() {
  app_->option_defaults()->take_last();
}

std::size_t Options::count(const std::string& name) const {
  return app_->count(name);
}

CommandText Options::describe() const {
  return {.name = name_,
          .summary = "",
          .words = app_->get_description(),
          .examples = examples_,
          .options = option_texts(*app_),
          .takes_keys = takes_overrides_};
}

bool Options::only_tells(const Arguments& arguments) const {
  if (text_described != nullptr) {
    *text_described = describe();
    return true;
  }
  for (const std::string& word : arguments) {
    if (word != "--help" && word != "-h") continue;
    std::printf("%s", help_text(describe(), terminal_width()).c_str());
    return true;
  }
  return false;
}

std::string Options::near_option(const std::string& word) const {
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string> names;
  if (name.starts_with('-')) {
    for (const OptionText& option : option_texts(*app_))
      names.insert(names.end(), option.names.begin(), option.names.end());
    std::erase_if(names, [](const std::string& option) { return !option.starts_with("--"); });
  } else if (name.size() < word.size()) {
    names = settings_;
  }
  return nearest_among(names, name);
}

std::string Options::nearest_among(const std::vector<std::string>& own, const std::string& name) const {
  std::vector<std::string> names = own;
  if (takes_overrides_) {
    const std::string dashes = name.starts_with('-') ? "--" : "";
    for (const std::string& key : key_names()) names.push_back(dashes + key);
  }
  // If two names are equally near, the command's own comes first.
  const std::string near = nearest_name(name, names);
  return std::ranges::find(own, near) == own.end() ? "" : near;
}

// Accepts "_" for "-" in option names and the reverse, as scripts of other programs write them.
Arguments Options::spelled(const Arguments& arguments) const {
  const auto is_option = [this](const std::string& name) {
    return std::ranges::any_of(app_->get_options(), [&](const CLI::Option* option) {
      return std::ranges::find(option->get_lnames(), name) != option->get_lnames().end();
    });
  };
  Arguments words = arguments;
  for (std::string& word : words) {
    if (!word.starts_with("--")) continue;
    const std::string name = word.substr(2, word.find('=') - 2);
    if (is_option(name)) continue;
    for (const auto& [from, to] : {std::pair{'_', '-'}, std::pair{'-', '_'}}) {
      std::string other = name;
      std::ranges::replace(other, from, to);
      if (other == name || !is_option(other)) continue;
      word.replace(2, name.size(), other);
      break;
    }
  }
  return words;
}

bool Options::parse(const Arguments& typed) {
  if (only_tells(typed)) return false;
  const Arguments arguments = spelled(typed);
  // CLI11 expects arguments in reverse order.
  Arguments reversed(arguments.rbegin(), arguments.rend());
  // SFT-Play's `--config FILE` is FILE.
  const bool named = takes_overrides_ && !arguments.empty() && arguments.back() != "--config";
  if (named) std::erase(reversed, "--config");
  const auto is_setting = [this](const std::string& word) {
    return std::ranges::find(settings_, word.substr(0, word.find('='))) != settings_.end();
  };
  // CLI11 would parse key=value as a positional argument, so it is set aside first.
  const auto is_override = [](const std::string& word) {
    const std::size_t equals = word.find('=');
    return !word.starts_with('-') && equals != std::string::npos && equals > 0 &&
           word.find_first_of("/ ") >= equals && !path_exists(word);
  };
  for (std::string& word : reversed) {
    if (is_override(word) && is_setting(word)) word.insert(0, "--");
  }
  for (const auto& word : arguments) {
    if (!takes_overrides_ || !is_override(word) || is_setting(word)) continue;
    refuse_near_setting(word);
    overrides_.push_back(word);
  }
  if (takes_overrides_) std::erase_if(reversed, is_override);
  try {
    app_->parse(std::move(reversed));
  } catch (const CLI::ParseError& e) {
    throw option_error(*app_, arguments, e);
  }
  const Arguments rest = app_->remaining();
  for (const std::string& word : rest) {
    refuse_near_setting(word);
    if (takes_overrides_) continue;  // the configuration reports it with a better message
    throw Error({.what = "argument '" + word + "' is not known",
                 .where = "command line",
                 .fix = "'" + app_->get_name() + " --help' lists the options",
                 .code = ExitCode::usage});
  }
  overrides_.insert(overrides_.end(), rest.begin(), rest.end());
  return true;
}

void Options::refuse_near_setting(const std::string& word) const {
  const std::string near = takes_overrides_ && is_key(word) ? "" : near_option(word);
  if (near.empty()) return;
  throw Error({.what = "argument '" + word + "' is not known",
               .where = "command line",
               .fix = "did you mean '" + near + "'?",
               .code = ExitCode::usage});
}

}  // namespace octet::cli
