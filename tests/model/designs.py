"""Every residual design, as changes to the tiny config; with its options where they change the program."""

from typing import Any

DESIGNS: dict[str, dict[str, Any]] = {
  'pre': {},
  'post': {'connection': 'post'},
  'sandwich': {'connection': 'sandwich'},
  'res_post': {'connection': 'res_post'},
  'deepnorm': {'connection': 'deepnorm'},
  'none': {'connection': 'none'},
  'gate, sink and derf': {'attention_gate': True, 'attention_sink': True, 'norm': 'derf'},
  'hyper_connections': {'connection': 'hyper_connections:streams=3'},
  'hyper_connections-static': {'connection': 'hyper_connections:streams=2:dynamic=false'},
  'manifold_hyper_connections': {'connection': 'manifold_hyper_connections:streams=3'},
  'manifold_hyper_connections-lite': {'connection': 'manifold_hyper_connections:streams=3:lite=true'},
  'value_residual': {'connection': 'value_residual'},
  'value_residual-learned': {'connection': 'value_residual:learned=true:first=0.3', 'num_heads': 2, 'num_kv_heads': 1},
  'residual_dual': {'connection': 'residual_dual'},
  'siamese_norm': {'connection': 'siamese_norm'},
  'b2t': {'connection': 'b2t'},
  'hybrid_norm': {'connection': 'hybrid_norm'},
  'hybrid_norm-shared': {'connection': 'hybrid_norm:shared=true'},
  'attention_residuals': {'connection': 'attention_residuals'},
  'attention_residuals, one group': {'connection': 'attention_residuals:groups=1'},
  'attention_residuals, full': {'connection': 'attention_residuals:groups=0'},
  'embedding_scalars': {'connection': 'embedding_scalars'},
  'completep': {'connection': 'completep:base_layers=1:base_width=2'},
  'layer_scale': {'connection': 'layer_scale'},
  'stochastic_depth': {'connection': 'stochastic_depth'},
  'layer_norm_scaling': {'connection': 'layer_norm_scaling'},
  'gated_residual': {'connection': 'gated_residual'},
  'gated_residual-highway': {'connection': 'gated_residual:gate=highway'},
  'mix_ln': {'connection': 'mix_ln:k=1'},
  'keel': {'connection': 'keel'},
  'skipless': {'connection': 'skipless'},
  'dense_former': {'connection': 'dense_former'},
  'dense_former-every 2': {'connection': 'dense_former:every=2', 'num_layers': 3},
  'u_net': {'connection': 'u_net', 'num_layers': 3},
}

# One with one stream, several, earlier outputs, two norms, and stages; the others are slow together.
KINDS = ('pre', 'hyper_connections-static', 'attention_residuals', 'siamese_norm', 'mix_ln')
