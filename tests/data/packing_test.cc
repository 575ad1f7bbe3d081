#include "octet/data/encoded.h"

#include <gtest/gtest.h>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/data/template_encoder.h"
#include "octet/feed/loader.h"
#include "support/program.h"

namespace octet::data::packing_test {
namespace {

// Golden files of LLaMA-Factory's own packing. Packs are stored as the lengths of their documents, without
// padding, positions and masks.
const std::string kGolden = OCTET_SOURCE_DIR "/tests/golden/";

std::vector<Json> lines_of(const std::string& name) {
  std::vector<Json> lines;
  for (const auto& line : split(read_file(kGolden + "data/" + name), '\n')) {
    if (!line.empty()) lines.push_back(parse_json(line, name));
  }
  return lines;
}

std::string tokenizer_folder(const Json& c) {
  const auto path = c["tokenizer"].get<std::string>();
  return kGolden + "tokenizers" + path.substr(path.find_last_of('/'));
}

TEST(Knapsack, EveryReferencePackComesOutTheSame) {
  std::int64_t packs = 0;
  for (const Json& c : lines_of("packing.jsonl")) {
    const auto cutoff = c["options"]["cutoff_len"].get<std::int64_t>();
    const bool neat = c["options"]["neat_packing"].get<bool>();
    TemplateEncoderOptions options{.folder = tokenizer_folder(c),
                                   .template_name = c["template"].get<std::string>()};
    options.options.cutoff_len = cutoff - 1;
    const TemplateEncoder encoder(options);
    Encoded set;
    for (const Json& conversation : c["conversations"]) {
      Sample sample;
      for (const Json& turn : conversation) sample.turns.push_back({turn["role"], turn["content"]});
      for (const auto& d : encoder.encode(sample).documents) set.append(d.ids, d.labels, set.documents());
    }
    const Items items = pack_knapsack(set, {.capacity = cutoff - 1, .shared_context = !neat});
    ASSERT_EQ(items.size(), static_cast<std::int64_t>(c["packs"].size()));
    for (std::int64_t i = 0; i < items.size(); ++i, ++packs) {
      const Json& pack = c["packs"][static_cast<std::size_t>(i)];
      const runtime::HostBatch batch = feed::make_batch(set, items, std::vector<std::int64_t>{i});
      EXPECT_EQ(batch.ids, pack["input_ids"].get<std::vector<std::int32_t>>());
      EXPECT_EQ(batch.tokens() + pack["padding"].get<std::int64_t>(), cutoff);
      std::vector<std::int32_t> positions, boundaries{0};
      for (const Json& length : pack["documents"]) {
        for (std::int32_t t = 0; t < length.get<std::int32_t>(); ++t) positions.push_back(t);
        boundaries.push_back(static_cast<std::int32_t>(positions.size()));
      }
      EXPECT_EQ(batch.positions, positions);
      if (!neat) boundaries = {0, boundaries.back()};
      EXPECT_EQ(batch.cu_seqlens, boundaries) << "only neat packing keeps documents apart";
      std::vector<std::int32_t> rows, targets;
      const auto labels = pack["labels"].get<std::vector<std::int32_t>>();
      for (std::size_t t = 1; t < labels.size(); ++t) {
        if (labels[t] < 0) continue;
        rows.push_back(static_cast<std::int32_t>(t) - 1);
        targets.push_back(labels[t]);
      }
      EXPECT_EQ(batch.label_rows, rows);
      EXPECT_EQ(batch.targets, targets);
    }
  }
  EXPECT_EQ(packs, 39);
}

TEST(Knapsack, RowsAreNotPackedAcrossBatchesAndLongOnesAreLeftOut) {
  Encoded set;
  for (const std::int64_t length : {3, 3, 9, 4, 4}) {
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(length), 1);
    set.append(ids, ids, set.documents());
  }
  const Items items = pack_knapsack(set, {.capacity = 8, .batch_rows = 2});
  EXPECT_EQ(items.documents, (LongArray<std::int64_t>{1, 0, 3, 4}));
  EXPECT_EQ(items.begins, (LongArray<std::int64_t>{0, 2, 3, 4}));
}

TEST(Pretraining, EveryReferenceBlockComesOutTheSame) {
  std::int64_t checked = 0;
  for (const Json& c : lines_of("pretrain.jsonl")) {
    const bool packing = c["options"]["packing"].get<bool>();
    TemplateEncoderOptions options{.folder = tokenizer_folder(c),
                                   .template_name = c["template"].get<std::string>()};
    options.options.cutoff_len = c["options"]["cutoff_len"].get<std::int64_t>();
    options.text_cut = packing ? TextCut::whole : TextCut::truncate;
    options.add_bos = c["add_bos_token"].get<bool>();
    const TemplateEncoder encoder(options);
    Encoded set;
    for (const Json& text : c["texts"]) {
      Sample sample{.text = text.get<std::string>(), .plain = true};
      for (const auto& d : encoder.encode(sample).documents) set.append(d.ids, d.labels, set.documents());
    }
    if (packing) {
      set = cut_blocks(set, {.length = options.options.cutoff_len, .first_token = encoder.text_bos_id()});
    }
    ASSERT_EQ(set.documents(), static_cast<std::int64_t>(c["input_ids"].size())) << c["template"];
    for (std::int64_t d = 0; d < set.documents(); ++d, ++checked) {
      const auto begin = set.ids.begin() + set.begins[static_cast<std::size_t>(d)];
      EXPECT_EQ(std::vector<std::int32_t>(begin, begin + set.length(d)),
                c["input_ids"][static_cast<std::size_t>(d)].get<std::vector<std::int32_t>>())
          << c["template"] << " block " << d;
    }
    EXPECT_EQ(set.labels, set.ids) << "all of a text is trained";
  }
  EXPECT_GE(checked, 150);
}

// Texts of five and three tokens are two blocks of four, and the second block ends exactly at the end of the
// texts.
TEST(Pretraining, TheLastWholeBlockStays) {
  Encoded set;
  const std::vector<std::int32_t> one{1, 2, 3, 4, 5}, other{6, 7, 8};
  set.append(one, one, 0);
  set.append(other, other, 1);
  const Encoded blocks = cut_blocks(set, {.length = 4});
  EXPECT_EQ(blocks.documents(), 2);
  EXPECT_EQ(std::vector<std::int32_t>(blocks.ids.begin(), blocks.ids.end()),
            (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(blocks.counts.tokens, 8);
  EXPECT_EQ(blocks.counts.trained, 6) << "nothing predicts the first token of a block";
}

// Batches of two rows. The end of a batch that fills no block is dropped. A block belongs to the row in which
// it begins.
TEST(Pretraining, BlocksAreOfTheirBatchOfRows) {
  Encoded set;
  for (std::int32_t row = 0; row < 5; ++row) {
    const std::vector<std::int32_t> ids{10 * row, 10 * row + 1, 10 * row + 2};
    set.append(ids, ids, row);
  }
  set.counts.rows = 7, set.counts.broken = 2, set.counts.trained = 99;
  const Encoded blocks = cut_blocks(set, {.length = 2, .batch_rows = 2});
  EXPECT_EQ(blocks.ids, (LongArray<std::int32_t>{0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41}));
  EXPECT_EQ(blocks.rows, (LongArray<std::int64_t>{0, 0, 1, 2, 2, 3, 4}));
  EXPECT_EQ(blocks.counts.rows, 7);
  EXPECT_EQ(blocks.counts.broken, 2);
  EXPECT_EQ(blocks.counts.documents, 7);
  EXPECT_EQ(blocks.counts.tokens, 14);
  EXPECT_EQ(blocks.counts.trained, 7);
  const Encoded begun = cut_blocks(set, {.length = 4, .batch_rows = 2, .first_token = 0});
  EXPECT_EQ(begun.ids, (LongArray<std::int32_t>{0, 1, 2, 10, 0, 21, 22, 30}));
  EXPECT_EQ(begun.labels, begun.ids);
  EXPECT_EQ(cut_blocks(set, {.length = 3, .batch_rows = 2, .first_token = -1}).ids, set.ids);
  EXPECT_EQ(cut_blocks(Encoded(), {.length = 3}).documents(), 0);
}

// The begin and end tokens of a text, and their labels.
TEST(Pretraining, TextsBeginAndEndAsTheirTokenizerAndTemplateSay) {
  struct Case {
    const char* folder;
    std::optional<std::string> name;
    std::optional<bool> bos;
    const char* text;
  };
  const auto decoded = [](const Case& c, bool splits, TextCut cut) {
    TemplateEncoderOptions options{.folder = kGolden + "tokenizers/" + c.folder,
                                   .template_name = c.name,
                                   .text_cut = cut,
                                   .add_bos = c.bos};
    options.options.split_special_tokens = splits;
    const TemplateEncoder encoder(options);
    const EncodedSample made = encoder.encode({.text = c.text, .plain = true});
    std::string all;
    for (const auto& d : made.documents)
      all += encoder.decode(d.ids) + "/" + std::to_string(d.ids.size()) + " ";
    return all + std::to_string(encoder.text_bos_id()) + (made.dropped ? " dropped" : "");
  };
  std::string page;
  for (const Case& c :
       {Case{"llama3", {}, {}, "hi"}, Case{"llama3", {}, true, "hi"}, Case{"llama3", {}, false, "hi"},
        Case{"llama3", "llama3", {}, "hi"}, Case{"qwen2", {}, {}, "hi"}, Case{"qwen2", "qwen", {}, "hi"},
        Case{"llama2", {}, {}, "hi"}, Case{"llama2", {}, false, "hi"}, Case{"gemma", {}, {}, "hi"},
        Case{"gpt2", {}, {}, "hi"}, Case{"mistral", {}, {}, "hi"}}) {
    page += std::string(c.folder) + ": " + decoded(c, false, TextCut::pieces) + " | " +
            decoded(c, false, TextCut::whole) + "\n";
  }
  EXPECT_EQ(page,
            "llama3: hi<|end_of_text|>/3 -1 | hi<|end_of_text|>/3 -1\n"
            "llama3: <|begin_of_text|>hi<|end_of_text|>/4 3994 | hi<|end_of_text|>/3 3994\n"
            "llama3: hi<|end_of_text|>/3 -1 | hi<|end_of_text|>/3 -1\n"
            "llama3: hi<|end_of_text|>/3 -1 | hi<|end_of_text|>/3 -1\n"
            "qwen2: hi<|endoftext|>/3 -1 | hi<|endoftext|>/3 -1\n"
            "qwen2: hi<|im_end|>/3 -1 | hi<|im_end|>/3 -1\n"
            "llama2: hi</s>/3 -1 | hi</s>/3 -1\n"
            "llama2: hi</s>/3 -1 | hi</s>/3 -1\n"
            "gemma: hi<eos>/2 -1 | hi<eos>/2 -1\n"
            "gpt2: hi<|endoftext|>/3 -1 | hi<|endoftext|>/3 -1\n"
            "mistral: hi</s>/3 -1 | hi</s>/3 -1\n");
  // A tokenizer may set the begin token itself. The setting of the run takes precedence.
  const test::TemporaryFolder folder("begins");
  for (const char* file : {"tokenizer.json", "special_tokens_map.json", "tokenizer_config.json"}) {
    const std::string from = kGolden + "tokenizers/llama3/" + file;
    Json json = read_json(from);
    if (std::string(file) == "tokenizer_config.json") json["add_bos_token"] = true;
    test::spill(folder / file, json.dump());
  }
  const auto begins = [&](std::optional<bool> bos) {
    return TemplateEncoder({.folder = folder.path(), .add_bos = bos}).text_bos_id() >= 0;
  };
  EXPECT_TRUE(begins({}));
  EXPECT_TRUE(begins(true));
  EXPECT_FALSE(begins(false));
  const Case typed{"qwen2", {}, {}, "a<|im_start|>b"};
  EXPECT_NE(decoded(typed, false, TextCut::pieces), decoded(typed, true, TextCut::pieces))
      << "what users typed is text where it is asked for";
  EXPECT_TRUE(decoded(typed, true, TextCut::pieces).starts_with("a<|im_start|>b<|"));
}

TEST(Pretraining, OfALongTextSoManyPiecesAreTrained) {
  Sample sample{.plain = true};
  for (int i = 0; i < 60; ++i) sample.text += "word ";
  const auto pieces = [&sample](TextCut cut, std::int64_t most) {
    TemplateEncoderOptions options{.folder = kGolden + "tokenizers/qwen2", .template_name = "qwen"};
    options.options.cutoff_len = 16;
    options.text_cut = cut;
    options.most_pieces = most;
    return TemplateEncoder(options).encode(sample);
  };
  const EncodedSample whole = pieces(TextCut::pieces, 0);
  ASSERT_GE(whole.documents.size(), 4u);
  EXPECT_FALSE(whole.truncated);
  const EncodedSample two = pieces(TextCut::pieces, 2);
  ASSERT_EQ(two.documents.size(), 2u);
  EXPECT_TRUE(two.truncated);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(two.documents[i].ids, whole.documents[i].ids);
  const EncodedSample chained = pieces(TextCut::whole, 2);
  EXPECT_EQ(chained.documents.at(0).ids.size(), 32u);
  EXPECT_TRUE(chained.truncated);
  EXPECT_EQ(pieces(TextCut::pieces, 1000).documents.size(), whole.documents.size());
  EXPECT_FALSE(pieces(TextCut::pieces, 1000).truncated);
  EXPECT_EQ(pieces(TextCut::truncate, 3).documents.size(), 1u) << "one anyway";
}

TEST(Pretraining, OursLosesNoToken) {
  const std::string folder = kGolden + "tokenizers/qwen2";
  const auto tokens = [&folder](TextCut cut) {
    TemplateEncoderOptions options{.folder = folder, .template_name = "qwen"};
    options.options.cutoff_len = 16;
    options.text_cut = cut;
    const TemplateEncoder encoder(options);
    std::vector<std::int32_t> all;
    Sample sample{.text = "A text that is rather longer than one block of sixteen tokens can be, by far.",
                  .plain = true};
    for (const auto& d : encoder.encode(sample).documents) {
      EXPECT_LE(d.ids.size(), cut == TextCut::whole ? 1000u : 16u);
      all.insert(all.end(), d.ids.begin(), d.ids.end());
    }
    return all;
  };
  EXPECT_EQ(tokens(TextCut::pieces), tokens(TextCut::whole));
  EXPECT_EQ(tokens(TextCut::truncate).size(), 16u);
}

}  // namespace
}  // namespace octet::data::packing_test
