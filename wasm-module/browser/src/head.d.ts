/** What was done with a request's tools, system text and history. */
export interface HeadReport {
  /** Whether the body was changed. */
  applied: boolean;
  toolsMoved: number;
  toolsReformed: number;
  /** Spans that stand behind the documents. */
  moved: number;
  /** Those of them that no pattern knows. */
  learned: number;
  frozen: number;
  dropped: number;
  restored: number;
  relocated: number;
  numbered: number;
  scored: number;
  doubtful: number;
  /** Volatile spans that stay as they are. */
  left: number;
  /** Each change, with its bytes in the body that came. */
  changes: { kind: "tool" | "moved" | "frozen" | "dropped" | "context" | "restored" | "number" | "score"; name: string; from: number; to: number }[];
}

/** Why a prompt could not begin like an earlier one. */
export interface Diagnosis {
  /** The request's number, from 1. */
  request: number;
  /** The number of the earlier request that shares most with it. */
  earlier: number | null;
  /** The cause's name, as `foreword explain` has it; `none` or `first-seen` when nothing broke. */
  cause: string;
  /** What kind of value it is, for the cause `volatile-value`. */
  volatile: "date-time" | "id" | "number" | "value" | null;
  /** The first segment that differs; `null` for a difference outside the prompt. */
  segment: "tools" | "system" | "history" | "documents" | "hint" | "question" | null;
  /** The name of the tool or the parameter, or the role of the message's author. */
  name: string;
  /** Its index among its like. */
  index: number;
  /** Bytes from its beginning to the piece that differs. */
  offset: number;
  /** The form of the differing text, in classes of characters, without any of its words. */
  shape: string;
  promptTokens: number;
  /** Tokens that the earlier prompt holds too, at any place. */
  sharedTokens: number;
  /** Tokens of the longest beginning that an earlier prompt shares. */
  reusedTokens: number;
  /** Tokens computed although the earlier prompt held them. */
  lostTokens: number;
}
