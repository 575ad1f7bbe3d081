#include "octet/text/tokenizer.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "tokenizer/component.h"
#include "tokenizer/scratch_pool.h"
#include "tokenizer/tokenizer_folder.h"
#include "unicode/utf8.h"

namespace octet::text {

/// A token with a role.
struct Role {
  std::string token;
  TokenId id = -1;
};

struct Tokenizer::Parts {
  std::shared_ptr<const Pipeline> pipeline;
  AddedTokens added;
  std::vector<std::string> decoded;  ///< byte-level decoders: the bytes of each id
  TokenId max_id = -1;
  Role bos, eos, pad, unk;
  std::optional<bool> add_bos;
  std::string folder;
  std::vector<std::string> files;
  bool changed = false;
  mutable ScratchPool pool;

  Parts() = default;
  Parts(const Parts& other);

  TokenId find(const std::string& token) const;
  /// Returns the piece in the spelling of the file, or null.
  const std::string* piece(TokenId id) const;
  bool is_special(TokenId id) const;
  /// Builds the matchers and the tables by id. Call it after tokens were set.
  void index();
  void add_special(const std::string& content);
  void encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& ids,
              std::vector<Span>* offsets) const;
  void emit(const Found& found, EncodeScratch& scratch, std::vector<TokenId>& ids,
            std::vector<Span>* offsets) const;
};

Tokenizer::Parts::Parts(const Parts& other)
    : pipeline(other.pipeline),
      added(other.added),
      decoded(other.decoded),
      max_id(other.max_id),
      bos(other.bos),
      eos(other.eos),
      pad(other.pad),
      unk(other.unk),
      add_bos(other.add_bos),
      folder(other.folder),
      files(other.files),
      changed(other.changed) {}

TokenId Tokenizer::Parts::find(const std::string& token) const {
  const TokenId id = added.find(token);
  return id >= 0 ? id : pipeline->bpe.find(token);
}

const std::string* Tokenizer::Parts::piece(TokenId id) const {
  if (const AddedToken* token = added.find(id)) return &token->content;
  return pipeline->bpe.piece(id);
}

bool Tokenizer::Parts::is_special(TokenId id) const {
  const std::string* token = piece(id);
  return token && added.is_special(*token);
}

void Tokenizer::Parts::index() {
  added.index(pipeline->normalizer.get());
  max_id = pipeline->bpe.max_id();
  for (const auto& [id, token] : added.all()) max_id = std::max(max_id, id);
  if (!pipeline->decoder.byte_level) return;
  decoded.assign(static_cast<std::size_t>(max_id) + 1, {});
  for (TokenId id = 0; id <= max_id; ++id) {
    if (const std::string* token = piece(id)) {
      decoded[static_cast<std::size_t>(id)] = bytes_of_piece(*token).value_or(*token);
    }
  }
}

void Tokenizer::Parts::add_special(const std::string& content) {
  if (content.empty() || !is_utf8(content)) {
    throw Error({.what = "a special token cannot be added",
                 .expected = "a string of at least one character, UTF-8",
                 .found = content.empty() ? "an empty string" : "bytes that are not UTF-8",
                 .fix = "correct the token",
                 .code = ExitCode::usage});
  }
  const AddedToken token{.content = content, .special = true};
  TokenId id = find(content);
  if (id < 0) id = max_id + 1;
  const AddedToken* old = added.find(id);
  if (old && *old == token) return;
  added.set(token, id);
  changed = true;
  index();
}

void Tokenizer::Parts::encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& ids,
                              std::vector<Span>* offsets) const {
  if (text.size() > INT32_MAX) {
    throw Error({.what = "a text is too long to be tokenised",
                 .expected = "less than 2 GiB",
                 .found = human_bytes(static_cast<double>(text.size())),
                 .fix = "cut it into documents",
                 .code = ExitCode::usage});
  }
  if (!is_utf8(text)) {
    throw Error({.what = "a text is not UTF-8 and cannot be tokenised",
                 .found = "'" + std::string(text.substr(0, 40)) + "'...",
                 .fix = "convert the data to UTF-8",
                 .code = ExitCode::usage});
  }
  auto scratch = pool.take();
  scratch->made.clear();
  scratch->raw.clear();
  scratch->found.clear();
  scratch->tokens.clear();
  const PostProcessor& post = pipeline->post_processor;
  if (options.add_special) ids.insert(ids.end(), post.before.begin(), post.before.end());

  added.cut({text}, false, options, scratch->raw);
  for (const Found& part : scratch->raw) {
    if (part.id >= 0) {
      scratch->found.push_back(part);
      continue;
    }
    TextView view = part.view;
    if (pipeline->normalizer && !pipeline->normalizer->keeps(view.text)) {
      scratch->made.push_back(pipeline->normalizer->apply(view));
      view = scratch->made.back().view();
    }
    added.cut(view, true, options, scratch->found);
  }
  std::vector<Span> spans;
  for (const Found& part : scratch->found) emit(part, *scratch, ids, offsets ? &spans : nullptr);

  if (offsets) {
    if (post.trim.enabled) trim_offsets(post.trim, text, scratch->tokens, spans);
    if (options.add_special) offsets->insert(offsets->end(), post.before.size(), Span{});
    offsets->insert(offsets->end(), spans.begin(), spans.end());
    if (options.add_special) offsets->insert(offsets->end(), post.after.size(), Span{});
  }
  if (options.add_special) ids.insert(ids.end(), post.after.begin(), post.after.end());
  pool.give(std::move(scratch));
}

void Tokenizer::Parts::emit(const Found& found, EncodeScratch& scratch, std::vector<TokenId>& ids,
                            std::vector<Span>* offsets) const {
  const bool trims = offsets && pipeline->post_processor.trim.enabled;
  if (found.id >= 0) {
    ids.push_back(found.id);
    if (offsets) offsets->push_back(found.view.range(0, found.view.text.size()));
    if (trims) scratch.tokens.push_back(found.view.text);
    return;
  }
  auto& pieces = scratch.pieces;
  pieces.assign(1, found.view);
  for (const auto& step : pipeline->pre_tokenizer.steps) step->apply(pieces, scratch.made);
  for (const TextView& word : pieces) {
    if (word.text.empty()) continue;
    pipeline->bpe.encode(word.text, scratch.bpe);
    std::size_t at = 0;
    for (const Symbol& symbol : scratch.bpe.symbols) {
      ids.push_back(symbol.id);
      if (!offsets) continue;
      const std::size_t end = at + symbol.length;
      offsets->push_back(symbol.length > 0 && end <= word.text.size() ? word.range(at, end) : Span{});
      if (trims) scratch.tokens.push_back(*pipeline->bpe.piece(symbol.id));
      at = end;
    }
  }
}

Tokenizer Tokenizer::from_folder(const std::string& path) {
  const TokenizerFolder folder(path);
  const std::string where = path + "/tokenizer.json";
  auto parts = std::make_unique<Parts>();
  parts->pipeline = folder.pipeline();
  parts->added = folder.added();
  parts->index();
  if (parts->max_id < 0) broken_tokenizer("the tokenizer has no tokens", "an empty vocabulary", where);
  for (const auto* ids : {&parts->pipeline->post_processor.before, &parts->pipeline->post_processor.after}) {
    for (const TokenId id : *ids) {
      if (!parts->piece(id))
        broken_tokenizer("the post-processor adds a token that does not exist", std::to_string(id), where);
    }
  }
  parts->folder = path;
  parts->files = folder.files();
  const auto role = [&](const char* key, Role& out) {
    const std::string token = folder.role(key);
    const TokenId id = parts->find(token);
    if (!token.empty() && id >= 0) out = {token, id};
  };
  role("bos_token", parts->bos);
  role("eos_token", parts->eos);
  role("pad_token", parts->pad);
  role("unk_token", parts->unk);
  parts->add_bos = folder.add_bos_token();
  return Tokenizer(std::move(parts));
}

void Tokenizer::save(const std::string& folder) const {
  const TokenChanges changes{.added = parts_->added, .eos = parts_->eos.token, .pad = parts_->pad.token};
  save_tokenizer_files(parts_->files, parts_->changed ? &changes : nullptr, folder);
}

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::Tokenizer(const Tokenizer& other) : parts_(std::make_unique<Parts>(*other.parts_)) {}
Tokenizer& Tokenizer::operator=(const Tokenizer& other) {
  if (this != &other) parts_ = std::make_unique<Parts>(*other.parts_);
  return *this;
}
Tokenizer::~Tokenizer() = default;

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  Encoding out;
  parts_->encode(text, options, out.ids, options.offsets ? &out.offsets : nullptr);
  return out;
}

void Tokenizer::encode_to(std::string_view text, std::vector<TokenId>& ids,
                          const EncodeOptions& options) const {
  parts_->encode(text, options, ids, nullptr);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  const PieceDecoder& decoder = parts_->pipeline->decoder;
  std::string bytes;
  std::vector<std::string> pieces;
  for (const TokenId id : ids) {
    const std::string* piece = parts_->piece(id);
    if (!piece || (skip_special && parts_->added.is_special(*piece))) continue;
    if (decoder.byte_level) {
      bytes += parts_->decoded[static_cast<std::size_t>(id)];
    } else {
      pieces.push_back(*piece);
    }
  }
  if (decoder.byte_level) return utf8_lossy(bytes);
  for (const auto& step : decoder.steps) step->apply(pieces);
  std::string out;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (decoder.none && i > 0) out += ' ';
    out += pieces[i];
  }
  return out;
}

std::int64_t Tokenizer::vocab_size() const {
  return std::int64_t{parts_->max_id} + 1;
}
TokenId Tokenizer::token_to_id(const std::string& token) const {
  return parts_->find(token);
}
std::string Tokenizer::id_to_token(TokenId id) const {
  const std::string* piece = parts_->piece(id);
  return piece ? *piece : std::string();
}
bool Tokenizer::is_special(TokenId id) const {
  return parts_->is_special(id);
}
TokenId Tokenizer::bos_id() const {
  return parts_->bos.id;
}
TokenId Tokenizer::eos_id() const {
  return parts_->eos.id;
}
TokenId Tokenizer::pad_id() const {
  return parts_->pad.id;
}
TokenId Tokenizer::unk_id() const {
  return parts_->unk.id;
}
const std::string& Tokenizer::bos_token() const {
  return parts_->bos.token;
}
const std::string& Tokenizer::eos_token() const {
  return parts_->eos.token;
}
const std::string& Tokenizer::pad_token() const {
  return parts_->pad.token;
}
std::optional<bool> Tokenizer::add_bos_token() const {
  return parts_->add_bos;
}
const std::vector<std::string>& Tokenizer::files() const {
  return parts_->files;
}
bool Tokenizer::changed() const {
  return parts_->changed;
}

TokenId Tokenizer::add_special_token(const std::string& content) {
  parts_->add_special(content);
  return parts_->find(content);
}

void Tokenizer::set_eos_token(const std::string& content) {
  if (parts_->eos.token == content) return;
  parts_->eos = {content, add_special_token(content)};
  parts_->changed = true;
}

void Tokenizer::set_pad_token(const std::string& content) {
  if (parts_->pad.token == content) return;
  const TokenId known = parts_->find(content);
  parts_->pad = {content, known >= 0 ? known : add_special_token(content)};
  parts_->changed = true;
}

namespace {

/// Whether a piece is <0xNN>. Only the end of a run of such pieces shows whether they form characters.
bool is_byte_piece(const std::string& piece) {
  return piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>';
}

}  // namespace

std::string StreamDecoder::push(TokenId id) {
  const Tokenizer::Parts& parts = *tokenizer_.parts_;
  const std::string* piece = parts.piece(id);
  if (!piece || (skip_special_ && parts.added.is_special(*piece))) return "";
  if (parts.pipeline->decoder.byte_level) {
    held_ += parts.decoded[static_cast<std::size_t>(id)];
    std::string out;
    std::string_view rest = held_;
    while (!rest.empty()) {
      const Utf8Step step = utf8_step(rest);
      if (step.truncated) break;
      out += step.valid ? rest.substr(0, step.size) : std::string_view("\xEF\xBF\xBD");
      rest.remove_prefix(step.size);
    }
    held_ = std::string(rest);
    return out;
  }
  pending_.push_back(id);
  if (is_byte_piece(*piece)) return "";
  const std::string text = tokenizer_.decode(pending_);
  std::string out = text.substr(std::min(emitted_, text.size()));
  // One piece with text stays as context, because the first piece of a text is decoded differently.
  const std::string alone = tokenizer_.decode({&id, 1});
  if (alone.empty()) {
    emitted_ = text.size();
  } else {
    pending_ = {id};
    emitted_ = alone.size();
  }
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  if (tokenizer_.parts_->pipeline->decoder.byte_level) {
    out = utf8_lossy(held_);
  } else {
    const std::string text = tokenizer_.decode(pending_);
    out = text.substr(std::min(emitted_, text.size()));
  }
  held_.clear();
  pending_.clear();
  emitted_ = 0;
  return out;
}

double unknown_share(const Tokenizer& tokenizer, std::string_view text) {
  const Encoding made = tokenizer.encode(text, {.offsets = true});
  std::vector<bool> known(text.size(), false);
  for (std::size_t i = 0; i < made.ids.size(); ++i) {
    const std::string token = tokenizer.id_to_token(made.ids[i]);
    if (made.ids[i] == tokenizer.unk_id() || token == "<unk>" || token == "[UNK]") continue;
    const Span& span = made.offsets[i];
    std::fill(known.begin() + span.begin, known.begin() + span.end, true);
  }
  std::size_t all = 0, found = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (std::string_view(" \t\r\n").find(text[i]) != std::string_view::npos) continue;
    ++all;
    found += known[i];
  }
  return all == 0 ? 0.0 : 1.0 - static_cast<double>(found) / static_cast<double>(all);
}

}  // namespace octet::text
