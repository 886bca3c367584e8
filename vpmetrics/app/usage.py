"""What ``--help`` says of each command."""

EVALUATE = """\
Say all that is known of one anonymiser: tables in the terminal and, if asked
for, JSON, figures and one HTML page.

From embeddings (DeID, G_VD, and every metric of original-original,
original-protected and protected-protected trials):

  vpmetrics evaluate embeddings.npz --out report
  vpmetrics evaluate v.npz --original emb_O --protected emb_B2 --speakers spk
  vpmetrics evaluate --original o.npy --protected p.npy --speakers speakers.txt
  vpmetrics evaluate --original o.ark --protected p.ark --utt2spk data/utt2spk

Files are NumPy's, PyTorch's, Safetensors, Parquet, Kaldi's ark and scp, or
tables of text, packed by gzip or not, or - for standard input; what each is
follows from its content. Rows are paired by utterance where files name these.

By a protocol, exactly the trials of a list, with results for each group; or
from a folder of results of a VoicePrivacy challenge:

  vpmetrics evaluate --original enrolls.scp trials.scp \\
                     --protected enrolls_anon.scp trials_anon.scp \\
                     --utt2spk utt2spk --enrolls enrolls --trials trials \\
                     --groups spk2gender --out report
  vpmetrics evaluate exp/asv_anon --out report

From Kaldi-style score files, lines `enrol trial score`, and a key, lines
`enrol trial target|nontarget` in any order (or the label as a fourth column of
the scores):

  vpmetrics evaluate scores key --out report
  vpmetrics evaluate --oo oo --op op --pp pp --key trials --utt2spk utt2spk
  vpmetrics evaluate scores key --fit scores_of_another_run
"""
COMPARE = """\
Put several anonymisers side by side: the columns of the papers' table 2, and
all systems in one figure each.

  vpmetrics compare B2=b2.npz B2u=b2u.npz --out report
  vpmetrics compare --original o.npy --speakers spk.npy B1=b1.npy B2=b2.npy
  vpmetrics compare --original v.npz:emb_O --speakers v.npz:speaker \\
                    B2=v.npz:emb_B2 B2u=v.npz:emb_B2u
  vpmetrics compare --key trials B1=scores_b1 B2=scores_b2
  vpmetrics compare --key trials --oo oo --utt2spk utt2spk \\
                    B1=b1_op,b1_pp B2=b2_op,b2_pp
"""
DEMO = """\
Train a small anonymiser of embeddings on the bundled synthetic voices with the
library's loss, watched by its metrics on speakers held out of training, and
compare it with baselines on these speakers. Nothing is downloaded.

  vpmetrics demo --out vpmetrics-demo
  tensorboard --logdir vpmetrics-demo/tensorboard
"""
EXIT = "Exit status: 0 when done, 2 when options or files cannot be used or say nothing."
