// Impossible headers of parts. Their hash may be correct, because the writer computed it.
#include "../src/memory_tier/rank_part.h"

#include <gtest/gtest.h>

#include "octet/base/error.h"
#include "octet/base/files.h"

namespace octet::memory_tier::memory_part_test {
namespace {

PartHeader header_in(const std::string& name) {
  return unpacked(read_file(OCTET_SOURCE_DIR "/tests/fuzz/corpus/memory_part/" + name), "here");
}

TEST(PartHeaders, SlicesThatCannotBeAreRefused) {
  for (const char* name : {"too_many_rows", "too_many_bytes", "unknown_type", "all_of_a_file"}) {
    try {
      header_in(name);
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.problem().code, ExitCode::no_valid_checkpoint) << name;
      EXPECT_EQ(e.problem().where, "here") << name;
    }
  }
}

TEST(PartHeaders, WhatWasLaidOutIsReadAgain) {
  const PartHeader header = header_in("whole_header");
  EXPECT_EQ(header.facts.step, 12);
  EXPECT_EQ(header.facts.world, 2);
  ASSERT_EQ(header.slices.size(), 2U);
  EXPECT_EQ(header.slices[0].bytes, 1200);
  EXPECT_EQ(header.slices[1].bytes, 64);
  EXPECT_EQ(header.slices[1].offset - header.slices[0].offset, 1216);
  EXPECT_EQ(header.file_bytes, header.slices[1].offset + 64);
  EXPECT_EQ(header.chunks.size(), 2U);
}

}  // namespace
}  // namespace octet::memory_tier::memory_part_test
